"""Trials of the sampler: requests through the real scheduler and the real verification.

Only the forward passes are replaced, the target's by a table of logits and the drafter's by a table
of its laws, so that thousands of requests share a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from peagle import verify as verification
from peagle._core import Drafts, Plan, Scheduler
from peagle.check.drafters import Drafter
from peagle.check.law import VOCAB, Float32Array, Int32Array, Sampling

RUNNING = 1024
"""Requests of a step."""
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Trials:
    """Texts to be sampled, one a request."""

    sampling: Sampling
    prompts: Int32Array
    """[N]: the one token of each prompt."""
    length: int
    """Tokens to generate."""
    k: int
    """Most drafts a step."""
    verification: str = "coupled"
    """As the engine takes it."""
    first_seed: int = 0
    """Request i has the seed `first_seed + i`."""


def run_trials(trials: Trials, table: Float32Array, drafter: Drafter | None) -> Int32Array:
    """Texts with their prompt's token, [N, 1 + length].

    A request that ends with an error has the impossible token VOCAB from there on.

    Args:
        table: [VOCAB, VOCAB], the target's logits after each token.
        drafter: None is plain decoding.
    """
    count, length = len(trials.prompts), trials.length
    scheduler = Scheduler(
        num_blocks=RUNNING * (2 + (length + trials.k) // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_seqs=RUNNING,
        max_num_batched_tokens=RUNNING * (2 + trials.k),
        max_model_len=length + trials.k + 2,
        num_speculative_tokens=trials.k,
        verification=trials.verification,
    )
    _add(scheduler, trials, speculates=drafter is not None)
    texts = np.full((count, 1 + length), VOCAB, np.int32)
    texts[:, 0] = trials.prompts
    filled = [1] * count
    drafts: Drafts | None = None
    while scheduler.num_unfinished():
        plan = scheduler.schedule(drafts)
        output = scheduler.update(verification.verify(plan, _logits(plan, table)))
        for step in output.outputs:
            start = filled[step.request_id]
            filled[step.request_id] = end = start + len(step.token_ids)
            texts[step.request_id, start:end] = step.token_ids
        drafts = drafter.propose(output.draft, trials.k) if drafter is not None else None
    return texts


def _add(scheduler: Scheduler, trials: Trials, *, speculates: bool) -> None:
    sampling = trials.sampling
    prompts: Sequence[Int32Array] = [np.array([token], np.int32) for token in range(VOCAB)]
    for index, token in enumerate(trials.prompts.tolist()):
        scheduler.add(
            index,
            prompts[token],
            max_tokens=trials.length,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=trials.first_seed + index,
            num_speculative_tokens=None if speculates else 0,
        )


def _logits(plan: Plan, table: Float32Array) -> torch.Tensor:
    last = np.minimum(plan.input_ids[plan.logits_rows], VOCAB - 1)
    return torch.from_numpy(table[last])
