"""How many KV blocks fit, and the paged tensors behind them."""

from __future__ import annotations

from dataclasses import dataclass

from peagle.models.batch import LayerCache
from peagle.models.llama import Decoder

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class KvCache:
    """The target's paged KV."""

    layers: list[LayerCache]
    num_blocks: int
    block_size: int

    @classmethod
    def allocate(cls, target: Decoder, num_blocks: int, block_size: int) -> KvCache:
        """Allocates the pool."""
        return cls(target.new_cache(num_blocks, block_size), num_blocks, block_size)

    @property
    def num_slots(self) -> int:
        """Token places in the pool."""
        return self.num_blocks * self.block_size


def blocks_for(max_model_len: int, max_num_seqs: int, look_ahead: int, block_size: int) -> int:
    """Blocks for `max_num_seqs` requests of the longest context, up to a fixed budget.

    The budget (16,384 tokens, but always one request of the longest context) keeps a laptop's
    memory free; ask for `num_kv_blocks` to have more.
    """
    longest = -(-(max_model_len + look_ahead) // block_size)
    budget = max(longest, 16384 // block_size)
    return min(longest * max_num_seqs, budget)
