"""Drafting from scratch: no scheduler, no cache that outlives the call."""

from __future__ import annotations

import numpy as np

from peagle.heads.peagle import PEagleHead
from peagle.models.batch import Batch, Int32Array
from peagle.models.llama import Decoder
from peagle.propose.drafts import to_target_ids

BLOCK_SIZE = 16


def drafts_from_scratch(
    target: Decoder, head: PEagleHead, token_ids: Int32Array, k: int
) -> list[int]:
    """The K drafts after committed tokens, from one target pass and one drafter pass.

    Args:
        token_ids: [n] committed tokens t_0..t_{n-1}; the hidden states of all but the last are
            used.
        k: drafts wanted.

    Returns:
        K target token ids; none if n is 1, for then there is no hidden state, or if the head's
        logits hold a NaN.
    """
    count = len(token_ids)
    if count < 2 or k == 0:
        return []
    num_blocks = -(-(count + k) // BLOCK_SIZE)
    cache = target.new_cache(num_blocks, BLOCK_SIZE)
    batch = _chain(token_ids[:-1], 0, np.arange(count - 1), num_blocks)
    _, aux = target.forward(batch, cache, BLOCK_SIZE, head.taps)
    projected = head.project(aux)
    backend = head.backend
    rows = count - 2 + k
    hidden = backend.zeros(rows, head.config.hidden_size)
    real = np.arange(count - 1, dtype=np.int32)
    backend.put_(real, projected, hidden)
    backend.put_(np.arange(count - 1, rows, dtype=np.int32), head.mask_hidden, hidden)
    mask_ids = np.full(k - 1, head.config.mask_token_id, np.int32)
    drafter_ids = np.concatenate([token_ids[1:], mask_ids])
    logits = head.forward(
        _chain(drafter_ids, 1, np.arange(rows), num_blocks),
        hidden,
        head.new_cache(num_blocks, BLOCK_SIZE),
        BLOCK_SIZE,
        np.arange(rows - k, rows, dtype=np.int32),
    )
    drafts: list[int] = to_target_ids(head.greedy_chain(logits), head.target_ids).tolist()
    return drafts


def _chain(
    token_ids: Int32Array,
    first_slot: int,
    positions: np.ndarray[tuple[int], np.dtype[np.int64]],
    num_blocks: int,
) -> Batch:
    """One request that owns blocks 0, 1, ...: slots are slot indices."""
    rows = len(token_ids)
    inner = np.arange(rows, dtype=np.int32)
    return Batch(
        input_ids=np.ascontiguousarray(token_ids, np.int32),
        positions=positions.astype(np.int32),
        slots=inner + np.int32(first_slot),
        query_start=np.array([0, rows], np.int32),
        context_lens=np.array([first_slot], np.int32),
        parents=inner - 1,
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
    )
