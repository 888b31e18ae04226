"""The flat arrays that describe one forward pass over several requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class BatchLike(Protocol):
    """Whatever carries the arrays of a `Batch`: the plans of the scheduler do."""

    @property
    def input_ids(self) -> Int32Array: ...
    @property
    def positions(self) -> Int32Array: ...
    @property
    def slots(self) -> Int32Array: ...
    @property
    def query_start(self) -> Int32Array: ...
    @property
    def context_lens(self) -> Int32Array: ...
    @property
    def parents(self) -> Int32Array: ...
    @property
    def block_tables(self) -> Int32Array: ...


@dataclass(frozen=True)
class Batch:
    """One forward pass: T rows of R requests, request-major. All arrays are int32.

    Row i of a request has the KV slot index `context_len + i`; it sees the slots before its
    request's first row, the rows found by following `parents`, and itself.
    """

    input_ids: Int32Array
    """[T] token ids."""
    positions: Int32Array
    """[T] RoPE positions."""
    slots: Int32Array
    """[T] where the row's KV goes: `block * block_size + offset`."""
    query_start: Int32Array
    """[R + 1] first row of each request."""
    context_lens: Int32Array
    """[R] slots in front of the request's first row."""
    parents: Int32Array
    """[T] parent row, relative to the request's first row; -1 is the last context slot."""
    block_tables: Int32Array
    """[R, M] block ids, padded with 0."""

    @classmethod
    def of(cls, plan: BatchLike) -> Batch:
        """Reads the arrays of a plan once."""
        return cls(
            input_ids=plan.input_ids,
            positions=plan.positions,
            slots=plan.slots,
            query_start=plan.query_start,
            context_lens=plan.context_lens,
            parents=plan.parents,
            block_tables=plan.block_tables,
        )

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.input_ids)


@dataclass(frozen=True)
class LayerCache:
    """Paged KV of one layer, in the model dtype.

    K is transposed inside a block so that one head dimension of `block_size` keys is contiguous:
    scores of a whole block then need no horizontal sums.
    """

    k: Any
    """[num_blocks, num_kv_heads, head_dim, block_size]"""
    v: Any
    """[num_blocks, num_kv_heads, block_size, head_dim]"""
