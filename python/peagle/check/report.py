"""What a check found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Progress = Callable[[int, int], None]
"""Told (done, total) cases."""


@dataclass(frozen=True)
class Case:
    """One question and its answer."""

    name: str
    method: str
    drafts: str
    shape: str
    statistic: float
    """Chi-square of a law; of an equality, how many things differed."""
    p_value: float
    """The probability of such a statistic for a sampler that is right; 0 or 1 for an equality."""
    negative_control: bool
    """The sampler was given something wrong, and the test had to notice."""
    passed: bool


@dataclass(frozen=True)
class CheckReport:
    """All cases, in order."""

    cases: list[Case]

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return all(case.passed for case in self.cases)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"passed": self.passed, "cases": [asdict(case) for case in self.cases]}


def equality(
    name: str,
    differences: int,
    *,
    method: str,
    drafts: str,
    shape: str,
    negative_control: bool = False,
) -> Case:
    """The case of an equality, passed if nothing differs (or, as a control, if something does)."""
    return Case(
        name,
        method,
        drafts,
        shape,
        statistic=float(differences),
        p_value=0.0 if differences else 1.0,
        negative_control=negative_control,
        passed=bool(differences) == negative_control,
    )
