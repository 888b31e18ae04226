"""Everything that decides a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from peagle.errors import ConfigError

LOSS_NAMES: Final = ("kl", "ce")


@dataclass(frozen=True)
class TrainConfig:
    """Recipe of a P-EAGLE head. The defaults are those of the head we ship."""

    num_layers: int = 2
    """Decoder layers of the head, the fused first one included."""
    draft_vocab_size: int = 4096
    k_train: int = 6
    """Depths trained."""
    cod_ratio: float = 0.6
    """Share of a depth's anchors that the next depth keeps."""
    depth_decay: float = 0.8
    """Depth d weighs depth_decay^d in the loss."""
    loss: str = "kl"
    num_answers: int = 2048
    """Continuations of the target to generate."""
    answer_len: int = 256
    """Tokens of each."""
    greedy_share: float = 0.6
    temperature: float = 0.7
    """Of the answers that are not greedy."""
    generation_batch: int = 64
    heldout: int = 64
    """Last answers of the corpus, never trained on."""
    iterations: int = 1000
    batch: int = 8
    """Answers an iteration sees."""
    matrix_lr: float = 2e-3
    """Peak learning rate of Muon (hidden matrices)."""
    other_lr: float = 6e-4
    """Peak learning rate of AdamW (LM head, norms, mask_hidden)."""
    warmup: int = 30
    """Iterations of linear warm-up; a cosine to a tenth follows."""
    clip: float = 1.0
    """Largest gradient norm."""
    transition_rank: int = 64
    """Of the transition table that is fitted to the finished head; 0 is none."""
    transition_iterations: int = 400
    transition_lr: float = 1e-2
    """Peak learning rate of AdamW; it falls to 0."""
    seed: int = 0
    checkpoint_every: int = 50
    """Iterations between checkpoints."""
    feature_cache_gib: float = 2.0
    """Memory for the target's hidden states, so that later epochs need no target pass."""

    def __post_init__(self) -> None:
        positive = (
            "num_layers draft_vocab_size k_train num_answers answer_len generation_batch "
            "heldout iterations batch checkpoint_every transition_iterations"
        )
        for name in positive.split():
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("cod_ratio", "depth_decay", "matrix_lr", "other_lr", "transition_lr"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a number in (0, 1]")
        for name in ("seed", "feature_cache_gib", "transition_rank"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 0")
        if not 0 <= self.greedy_share <= 1:
            raise ConfigError(f"greedy_share is {self.greedy_share}, expected 0 to 1")
        if self.loss not in LOSS_NAMES:
            raise ConfigError(
                f"loss {self.loss!r} is unknown", hint=f"one of {', '.join(LOSS_NAMES)}"
            )
        if self.answer_len <= self.k_train:
            raise ConfigError(
                f"answer_len is {self.answer_len}, expected more than k_train {self.k_train}",
                hint="raise --answer-len or lower --k-train",
            )
        if self.num_answers <= self.heldout:
            raise ConfigError(
                f"num_answers is {self.num_answers}, expected more than heldout {self.heldout}"
            )
