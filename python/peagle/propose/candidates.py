"""The likeliest tokens behind each node of a token tree while it grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peagle.backends.base import Array
from peagle.heads.peagle import PEagleHead
from peagle.propose.tree import Candidates


@dataclass(frozen=True)
class DrafterPass:
    """Logits of one drafter pass and the likeliest tokens of each row."""

    head: PEagleHead
    logits: Array
    """float32 [rows, draft_vocab_size]"""
    log_probs: npt.NDArray[np.float32]
    """[rows, width], descending."""
    draft_ids: npt.NDArray[np.int32]
    """[rows, width] the tokens."""

    @classmethod
    def of(cls, head: PEagleHead, logits: Array, width: int) -> DrafterPass:
        """Finds the `width` likeliest tokens of each row."""
        return cls(head, logits, *head.backend.top_log_probs(logits, width))

    def behind(self, start: int, depth: int, draft_id: int) -> Candidates:
        """What may follow a drafted token.

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
            corrected = self.head.backend.top_log_probs(logits, len(ids))
            log_probs, ids = corrected[0][0], corrected[1][0]
        return Candidates(log_probs.tolist(), ids.tolist())
