"""Fits the transition table of a finished head (see `peagle.heads.transition`).

The head stays as it is, so that engines without the table lose nothing. Its logits of the depths
past the first are averages over the token before; the table learns what that token adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from peagle.train.config import TrainConfig
from peagle.train.corpus import Sample
from peagle.train.losses import LOSSES, mean_by_depth
from peagle.train.supervision import Supervisor, choose_samples


class TransitionTable(nn.Module):
    """`after[t] . before[s]`: what a token s adds to the logit of t behind it."""

    def __init__(self, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Parameter(0.3 * torch.randn(draft_vocab_size, rank))
        self.after = nn.Parameter(torch.zeros(draft_vocab_size, rank))

    def forward(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """[N] draft ids of the tokens before -> [N, draft_vocab_size] additions to the logits."""
        return self.before[draft_ids] @ self.after.T


def fit_transition(
    supervisor: Supervisor,
    samples: Sequence[Sample],
    target_ids: npt.NDArray[np.int64],
    config: TrainConfig,
    report: Callable[[int], None] = lambda iteration: None,
) -> TransitionTable | None:
    """Fits a table with AdamW and a falling learning rate; `None` for rank 0.

    Args:
        supervisor: of the finished head.
        target_ids: [draft_vocab_size] target ids of the draft ids.
        report: told the number of iterations done.
    """
    if config.transition_rank == 0:
        return None
    torch.manual_seed(config.seed)
    table = TransitionTable(len(target_ids), config.transition_rank)
    draft_ids = torch.full((len(supervisor.embedding),), -1)
    draft_ids[torch.from_numpy(target_ids)] = torch.arange(len(target_ids))
    optimizer = torch.optim.AdamW(table.parameters(), config.transition_lr, weight_decay=0.0)
    total = config.transition_iterations
    for iteration in range(total):
        for group in optimizer.param_groups:
            group["lr"] = config.transition_lr * (1.0 - iteration / total)
        generator = torch.Generator().manual_seed(config.seed * 6_700_417 + iteration)
        loss = _loss(table, supervisor, samples, draft_ids, iteration, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        report(iteration + 1)
    return table


def _loss(
    table: TransitionTable,
    supervisor: Supervisor,
    samples: Sequence[Sample],
    draft_ids: torch.Tensor,
    iteration: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """The head's own loss over the depths past the first, behind tokens that can be drafted."""
    config = supervisor.config
    with torch.no_grad():
        seen = supervisor.supervise(choose_samples(samples, iteration, config), generator)
        before = draft_ids[seen.before]
        chosen = (seen.depths > 0) & (before >= 0)
        with torch.autocast("cpu", torch.bfloat16):
            logits = supervisor.head.lm_head(seen.hidden[chosen])
    with torch.autocast("cpu", torch.bfloat16):
        added = table(before[chosen])
    losses = LOSSES[config.loss](logits.float() + added.float(), seen.wanted[chosen])
    return mean_by_depth(losses, seen.depths[chosen], config.depth_decay)
