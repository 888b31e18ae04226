"""The transition table of a head: what the token drafted before says about the next.

A P-EAGLE head gives the distributions of all depths in one pass, so a depth does not know which
token was taken before it. A low-rank table puts that back without another pass: the logits of a
token t behind a drafted token s gain `after[t] . before[s]`. vLLM does not know of the table and
drafts without it; verification is exact with any drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peagle.backends.base import Array, Backend
from peagle.models.weights import WeightReader

TRANSITION_FILE = "transition.safetensors"


@dataclass(frozen=True)
class Transition:
    """A loaded transition table over the draft vocabulary."""

    backend: Backend
    before: Array
    """[draft_vocab_size, rank]"""
    after: Any
    """[draft_vocab_size, rank], packed."""

    @classmethod
    def load(cls, folder: Path, backend: Backend, draft_vocab_size: int, rank: int) -> Transition:
        """Reads the head folder's `transition.safetensors`.

        Args:
            rank: of the table, as `config.json` has it.

        Raises:
            CheckpointError: missing, damaged, or other tensors than `before` and `after`.
        """
        reader = WeightReader(folder, file=TRANSITION_FILE)
        shape = (draft_vocab_size, rank)
        before = backend.array(reader.take("before", shape, backend.dtype))
        after = backend.pack(reader.take("after", shape, backend.dtype))
        reader.finish()
        return cls(backend, before, after)

    def correct(self, logits: Array, draft_id: int) -> Array:
        """The logits behind a drafted token.

        Args:
            logits: float32 [1, draft_vocab_size] of the depth after the token's.
            draft_id: the token.

        Returns:
            float32 [1, draft_vocab_size]
        """
        before = self.backend.take(self.before, np.array([draft_id], np.int32))
        return logits + self.backend.linear_f32(before, self.after)
