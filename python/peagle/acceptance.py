"""How many drafts were accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class Acceptance:
    """Counts over windows that had a draft."""

    windows: int = 0
    accepted_by_position: tuple[int, ...] = ()
    """Windows in which the draft at position i was accepted."""

    @classmethod
    def of(cls, stats: Mapping[str, Any], k: int) -> Acceptance:
        """The scheduler's counters, for windows of at most k drafts.

        The scheduler's list is as long as its longest run so far, by whatever k.
        """
        counts = (*stats["accepted_by_position"], *([0] * k))
        return cls(stats["windows"], counts[:k])

    def __add__(self, other: Acceptance) -> Acceptance:
        return self._combine(other, 1)

    def __sub__(self, other: Acceptance) -> Acceptance:
        return self._combine(other, -1)

    def _combine(self, other: Acceptance, sign: int) -> Acceptance:
        pairs = zip_longest(self.accepted_by_position, other.accepted_by_position, fillvalue=0)
        positions = tuple(a + sign * b for a, b in pairs)
        return Acceptance(self.windows + sign * other.windows, positions)

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / windows: the extra token counts. `None` without windows."""
        if not self.windows:
            return None
        return 1.0 + sum(self.accepted_by_position) / self.windows

    @property
    def accept_by_position(self) -> list[float]:
        """Share of all windows in which the draft at position i was accepted; 0 without any."""
        return [count / max(self.windows, 1) for count in self.accepted_by_position]
