"""What a training iteration needs from the target, computed on the fly from token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from peagle.models.llama import Decoder
from peagle.train.cod import Elements, attention_mask
from peagle.train.corpus import BLOCK_SIZE, Sample, block_tables, dense_batch

PADDING_ANCHOR = -1


@dataclass(frozen=True)
class TargetFeatures:
    """Hidden states of B sequences of up to L tokens, padded with zeros."""

    token_ids: torch.Tensor
    """[B, L] int64"""
    taps: torch.Tensor
    """[B, L, num_taps * hidden_size]"""
    draft_logits: torch.Tensor
    """[B, L, draft_vocab_size] the target's logits of the draft vocabulary's tokens"""


class FeatureExtractor:
    """Runs the target over whole samples, and remembers what fits into memory."""

    def __init__(
        self,
        target: Decoder,
        taps: tuple[int, ...],
        head_rows: torch.Tensor,
        cache_bytes: int = 0,
    ) -> None:
        """
        Args:
            target: the model the head is for.
            taps: layers whose input is read.
            head_rows: [draft_vocab_size, hidden_size] the target's LM head for the draft
                vocabulary.
            cache_bytes: how much to remember, so that later epochs need no target pass.
        """
        self._target = target
        self._taps = taps
        self._head_rows = head_rows.to(target.backend.dtype)
        self._room = cache_bytes
        self._known: dict[int, _SampleStates] = {}

    @torch.no_grad()
    def extract(self, samples: Sequence[Sample]) -> TargetFeatures:
        """One prefill of the target over the samples that are not remembered."""
        new = [s for s in samples if _key(s) not in self._known]
        fresh = dict(zip(map(_key, new), self._run(new), strict=True)) if new else {}
        states = [self._known.get(_key(s)) or fresh[_key(s)] for s in samples]
        for key, value in fresh.items():
            if value.num_bytes <= self._room:
                self._room -= value.num_bytes
                self._known[key] = value
        pad = torch.nn.utils.rnn.pad_sequence
        final = pad([s.final for s in states], batch_first=True)
        return TargetFeatures(
            token_ids=pad(
                [torch.from_numpy(s.token_ids).long() for s in samples], batch_first=True
            ),
            taps=pad([s.taps for s in states], batch_first=True),
            draft_logits=final @ self._head_rows.T,
        )

    def mean_taps(self, samples: Sequence[Sample]) -> torch.Tensor:
        """The mean over all tokens of the samples: [num_taps * hidden_size]."""
        taps = self.extract(samples).taps
        real = [t[: len(s.token_ids)] for t, s in zip(taps, samples, strict=True)]
        return torch.cat(real).float().mean(0)

    def _run(self, samples: Sequence[Sample]) -> list[_SampleStates]:
        target, backend = self._target, self._target.backend
        lengths = np.array([len(s.token_ids) for s in samples], np.int32)
        tables, num_blocks = block_tables(lengths)
        batch = dense_batch(
            [s.token_ids for s in samples], np.zeros(len(samples), np.int32), tables
        )
        cache = target.new_cache(num_blocks, BLOCK_SIZE)
        hidden, aux = target.forward(batch, cache, BLOCK_SIZE, self._taps)
        final = backend.rms_norm(hidden, target.norm, target.config.rms_norm_eps)
        parts = [torch.split(backend.tensor(x).cpu(), lengths.tolist()) for x in (aux, final)]
        # Copies, so that a remembered sample does not keep the whole batch alive.
        return [_SampleStates(a.clone(), f.clone()) for a, f in zip(*parts, strict=True)]


def _key(sample: Sample) -> int:
    # Samples live as long as the corpus, so the identity of their ids names them.
    return id(sample.token_ids)


@dataclass(frozen=True)
class _SampleStates:
    """[L, num_taps * hidden_size] and the normed final hidden states [L, hidden_size]."""

    taps: torch.Tensor
    final: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.taps.nbytes + self.final.nbytes


@dataclass(frozen=True)
class ElementBatch:
    """The elements of B sequences, padded to N."""

    anchors: torch.Tensor
    """[B, N] int64, `PADDING_ANCHOR` where padded"""
    depths: torch.Tensor
    """[B, N] int64"""
    supervised: torch.Tensor
    """[B, N] bool"""
    mask: torch.Tensor
    """[B, 1, N, N] bool"""


def stack_elements(elements: Sequence[Elements]) -> ElementBatch:
    """Pads the elements of several sequences to one length."""

    def pad(parts: list[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)

    anchors = pad([e.anchors for e in elements], PADDING_ANCHOR)
    # Padding at depth 1 is no context to anybody and sees other padding only.
    depths = pad([e.depths for e in elements], 1)
    return ElementBatch(
        anchors=anchors,
        depths=depths,
        supervised=pad([e.supervised for e in elements], 0).bool(),
        mask=torch.stack([attention_mask(a, d) for a, d in zip(anchors, depths, strict=True)])[
            :, None
        ],
    )
