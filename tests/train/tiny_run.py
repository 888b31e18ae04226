"""A training run small enough for any test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peagle.train.config import TrainConfig
from peagle.train.run import TrainResult, train_head
from tests.tiny import MASK_TOKEN, random_ids

CONFIG = TrainConfig(
    num_layers=2,
    draft_vocab_size=60,
    k_train=4,
    num_answers=12,
    answer_len=24,
    generation_batch=5,
    heldout=3,
    iterations=6,
    batch=2,
    warmup=2,
    checkpoint_every=2,
    transition_rank=4,
    transition_iterations=3,
    greedy_share=0.8,
    feature_cache_gib=0.001,
)


class Silent:
    """Hears and says nothing; may raise at an iteration, as a kill would."""

    def __init__(self, stop_at: int | None = None) -> None:
        self._stop_at = stop_at
        self.answers = 0
        self.iterations: list[int] = []
        self.fitted = 0

    def generating(self, done: int, total: int) -> None:
        """Counts."""
        self.answers = done

    def training(self, progress: Any, total: int) -> None:
        """Stops where it was told to."""
        self.iterations.append(progress.iteration)
        if progress.iteration == self._stop_at:
            raise KeyboardInterrupt

    def fitting(self, done: int, total: int) -> None:
        """Counts."""
        self.fitted = done


def prompts(count: int = CONFIG.num_answers, first_seed: int = 0) -> list[list[int]]:
    """Tokenized prompts of several lengths."""
    return [random_ids(5 + i % 7, seed=first_seed + i) for i in range(count)]


def run(target: Path, out: Path, config: TrainConfig = CONFIG, **more: Any) -> TrainResult:
    """A whole training run."""
    listener = more.pop("listener", None) or Silent()
    mask_token_id = more.pop("mask_token_id", MASK_TOKEN)
    chosen = more.pop("prompts", None) or prompts()
    return train_head(target, out, chosen, mask_token_id, config, listener, **more)
