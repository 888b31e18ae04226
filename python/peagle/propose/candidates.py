"""The best tokens behind each node of a token tree while it grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from peagle._core import coupled_candidates
from peagle.backends.base import Array
from peagle.heads.peagle import PEagleHead
from peagle.propose.tree import Candidates

if TYPE_CHECKING:
    from peagle._core import DraftPlan

TAU = [0.85]
"""Temperatures of coupled drafts by depth, on top of the request's; fitted to the first head
of the demo target."""

HIT = 0.35
"""How likely the target is to draw any of a row's raced candidates. Their shares sum to 1, so that
trees would grow too deep without it. Of no effect on chains; 0.3 to 0.5 do equally well."""

Ranked = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]
"""Log probabilities [N, width], descending, NaN for a row with a NaN; and draft ids [N, width]."""

Rank = Callable[[npt.NDArray[np.int32], Array], Ranked]
"""(draft rows [N], their logits [N, draft_vocab_size]) -> the best tokens of each."""


def by_likelihood(head: PEagleHead, width: int) -> Rank:
    """Ranks tokens by the drafter's law."""
    return lambda rows, logits: head.backend.top_log_probs(logits, width)


def by_coupled_race(head: PEagleHead, width: int, plan: DraftPlan) -> Rank:
    """Ranks tokens by a race of the drafter's law over the target's noise.

    A log probability is then the logarithm of the token's share of the race, times `HIT`. Requests
    at temperature 0 have the likeliest tokens.
    """
    width = min(width, len(head.target_ids))
    cold = (plan.temperature == 0.0).repeat(plan.k)

    def rank(rows: npt.NDArray[np.int32], logits: Array) -> Ranked:
        plain = head.backend.tensor(logits).float().cpu().numpy()
        log_shares, ids = coupled_candidates(plan, rows, plain, head.target_ids, width, TAU)
        log_shares += math.log(HIT)
        if cold[rows].any():
            likeliest = head.backend.top_log_probs(logits, width)
            log_shares[cold[rows]] = likeliest[0][cold[rows]]
            ids[cold[rows]] = likeliest[1][cold[rows]]
        return log_shares, ids

    return rank


@dataclass(frozen=True)
class DrafterPass:
    """Logits of one drafter pass and the best tokens of each row."""

    head: PEagleHead
    logits: Array
    """float32 [rows, draft_vocab_size]"""
    rank: Rank
    log_probs: npt.NDArray[np.float32]
    """[rows, width], as `rank` gives them."""
    draft_ids: npt.NDArray[np.int32]
    """[rows, width] the tokens."""

    @classmethod
    def of(cls, head: PEagleHead, logits: Array, rank: Rank) -> DrafterPass:
        """Ranks the tokens of all rows."""
        return cls(head, logits, rank, *rank(np.arange(len(logits), dtype=np.int32), logits))

    def behind(self, start: int, depth: int, draft_id: int) -> Candidates:
        """What may follow a drafted token; nothing if the transition table gives a NaN.

        Without a transition table a row has the same candidates behind every token.

        Args:
            start: the request's first row, which is that of depth 0.
            depth: that follows the token's.
            draft_id: the token; -1 for the last committed one.
        """
        row, transition = start + depth, self.head.transition
        log_probs, ids = self.log_probs[row], self.draft_ids[row]
        if transition is not None and draft_id >= 0:
            logits = transition.correct(self.logits[row : row + 1], draft_id)
            corrected = self.rank(np.array([row], np.int32), logits)
            log_probs, ids = corrected[0][0], corrected[1][0]
        possible = np.isfinite(log_probs)
        return Candidates(log_probs[possible].tolist(), ids[possible].tolist())
