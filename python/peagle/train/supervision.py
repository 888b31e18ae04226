"""What the head sees and what it should have said, for the sampled elements of some answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from peagle.train.cod import sample_elements
from peagle.train.config import TrainConfig
from peagle.train.corpus import Sample
from peagle.train.features import ElementBatch, FeatureExtractor, TargetFeatures, stack_elements
from peagle.train.module import TrainableHead


@dataclass(frozen=True)
class Supervision:
    """The N elements of a batch whose prediction counts."""

    hidden: torch.Tensor
    """[N, hidden_size] in front of the LM head"""
    depths: torch.Tensor
    """[N] int64"""
    before: torch.Tensor
    """[N] int64, target ids of the tokens right before the predicted ones"""
    wanted: torch.Tensor
    """[N, draft_vocab_size] the target's logits"""


@dataclass(frozen=True)
class Supervisor:
    """Runs a head over elements that COD samples."""

    head: TrainableHead
    extractor: FeatureExtractor
    embedding: torch.Tensor
    """[vocab_size, hidden_size] of the target, frozen."""
    mask_token_id: int
    config: TrainConfig

    def hidden(self, features: TargetFeatures, batch: ElementBatch) -> torch.Tensor:
        """The head's final hidden states [B, N, hidden_size] of elements of B sequences."""
        rows = torch.arange(len(batch.anchors))[:, None]
        inputs = features.token_ids[rows, batch.anchors + 1]
        inputs = torch.where(batch.depths > 0, self.mask_token_id, inputs)
        hidden: torch.Tensor = self.head(
            features.taps, self.embedding[inputs], batch.anchors, batch.depths, batch.mask
        )
        return hidden

    def supervise(self, samples: Sequence[Sample], generator: torch.Generator) -> Supervision:
        """One pass over the samples; `generator` decides about the elements."""
        config = self.config
        features = self.extractor.extract(samples)
        batch = stack_elements(
            [
                sample_elements(
                    len(s.token_ids), s.prompt_len, config.k_train, config.cod_ratio, generator
                )
                for s in samples
            ]
        )
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.hidden(features, batch)
        rows = torch.arange(len(samples))[:, None]
        last = batch.anchors + batch.depths + 1
        chosen = batch.supervised
        return Supervision(
            hidden=hidden[chosen],
            depths=batch.depths[chosen],
            before=features.token_ids[rows, last][chosen],
            wanted=features.draft_logits[rows, last][chosen],
        )


def choose_samples(samples: Sequence[Sample], iteration: int, config: TrainConfig) -> list[Sample]:
    """The samples of an iteration: a fresh permutation each epoch."""
    size, count = config.batch, len(samples)
    chosen = []
    for position in range(iteration * size, (iteration + 1) * size):
        epoch, index = divmod(position, count)
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
        chosen.append(samples[int(torch.randperm(count, generator=generator)[index])])
    return chosen
