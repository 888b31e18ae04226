"""Runs the target over the scheduler's plans and keeps its KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from peagle.kv_cache import KvCache
from peagle.models.batch import Batch
from peagle.models.llama import Decoder
from peagle.propose.base import Proposer

if TYPE_CHECKING:
    from peagle._core import Plan


class ModelRunner:
    """The target's forward pass, with what the proposer wants to see of it."""

    def __init__(self, target: Decoder, cache: KvCache, proposer: Proposer | None) -> None:
        self.target = target
        self.cache = cache
        self._proposer = proposer
        self._taps = proposer.taps if proposer is not None else ()

    def forward(self, plan: Plan) -> torch.Tensor:
        """One target pass.

        Args:
            plan: from the scheduler.

        Returns:
            float32 logits of the plan's `logits_rows` [L, vocab_size], on the backend's device.
        """
        batch = Batch.of(plan)
        watched = self._proposer is not None and plan.wants_hidden
        hidden, aux = self.target.forward(
            batch, self.cache.layers, self.cache.block_size, self._taps if watched else ()
        )
        if self._proposer is not None and watched:
            self._proposer.observe(batch, aux)
        logits = self.target.logits(hidden, plan.logits_rows)
        return self.target.backend.tensor(logits)

    def move(self, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]) -> None:
        """Makes an accepted tree path contiguous: copies slots, in order."""
        if len(src) == 0:
            return
        for layer in self.cache.layers:
            self.target.backend.copy_slots(layer, src, dst)
        if self._proposer is not None:
            self._proposer.move(src, dst)
