"""What the engine asks of a proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from peagle.models.batch import Batch
from peagle.propose.drafts import DraftLaws

if TYPE_CHECKING:
    from peagle._core import DraftPlan


class Proposals(Protocol):
    """Token trees of several requests, flat and request-major."""

    @property
    def request_ids(self) -> npt.NDArray[np.int64]:
        """[R]"""

    @property
    def starts(self) -> npt.NDArray[np.int32]:
        """[R + 1]"""

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """[N]"""

    @property
    def parents(self) -> npt.NDArray[np.int32]:
        """[N] relative to the request's first node; -1 hangs on the last committed token"""

    @property
    def mode(self) -> str:
        """How they were chosen above temperature 0: greedy, coupled or sampled"""

    @property
    def laws(self) -> DraftLaws | None:
        """What sampled ones were drawn from; rejection and block verification want it"""


class Proposer(Protocol):
    """Makes drafts for the requests of a draft plan."""

    taps: tuple[int, ...]
    """Target layers whose input `observe` wants, ascending."""

    def observe(self, batch: Batch, aux: Any) -> None:
        """Sees the target's pass.

        Args:
            batch: its rows.
            aux: [T, len(taps) * hidden_size], or `None` without taps.
        """

    def move(self, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]) -> None:
        """Slots that the target's KV moved between; whatever is kept by slot moves along."""

    def propose(self, plan: DraftPlan) -> Proposals:
        """Drafts at most `plan.k[i]` tokens for request i."""
