"""The loop: schedule, forward, verify, update, propose."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from peagle._core import Drafts, Scheduler, StepOutput, Verdicts
from peagle.propose.base import Proposer
from peagle.runner import ModelRunner
from peagle.verify import verify

StopCheck = Callable[[list[int]], int]
"""Told the tokens of a step, answers how many a stop string leaves, or -1 without one."""


@dataclass
class StepTimes:
    """Seconds spent since the last reset, by part of the step."""

    steps: int = 0
    schedule: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    update: float = 0.0
    draft: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.schedule + self.target + self.verify + self.update + self.draft


@dataclass(frozen=True)
class RequestUpdate:
    """What a step did to one request."""

    request_id: int
    token_ids: list[int]
    finish_reason: str | None
    error: str | None
    num_drafted: int
    num_accepted: int


@dataclass
class Engine:
    """Runs requests together, one step at a time. Knows token ids, not text."""

    scheduler: Scheduler
    runner: ModelRunner
    proposer: Proposer | None = None
    times: StepTimes = field(default_factory=StepTimes)
    _drafts: Drafts | None = None
    _stop_checks: dict[int, StopCheck] = field(default_factory=dict)

    def watch(self, request_id: int, stop_check: StopCheck) -> None:
        """Asks `stop_check` about every step of a request that was added to the scheduler."""
        self._stop_checks[request_id] = stop_check

    def abort(self, request_id: int) -> bool:
        """Ends a request in any phase and frees its blocks; false if it is not there."""
        self._stop_checks.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def step(self) -> list[RequestUpdate]:
        """One engine step over all requests.

        Returns:
            The requests that got tokens or ended.
        """
        clock = time.perf_counter
        started = clock()
        plan = self.scheduler.schedule(self._drafts)
        self._drafts = None
        scheduled = clock()
        logits = self.runner.forward(plan)
        forwarded = clock()
        verdicts = verify(plan, logits)
        verified = clock()
        output = self.scheduler.update(verdicts, self._cuts(verdicts))
        self.runner.move(output.moves_src, output.moves_dst)
        updates = [self._update(o) for o in output.outputs]
        updated = clock()
        self._propose(output)
        times = self.times
        times.steps += 1
        times.schedule += scheduled - started
        times.target += forwarded - scheduled
        times.verify += verified - forwarded
        times.update += updated - verified
        times.draft += clock() - updated
        return updates

    def _propose(self, output: StepOutput) -> None:
        if self.proposer is not None and len(output.draft.request_ids):
            made = self.proposer.propose(output.draft)
            self._drafts = Drafts(made.request_ids, made.starts, made.token_ids, made.parents)

    def _cuts(self, verdicts: Verdicts) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        if not self._stop_checks:
            return None
        cuts = np.full(len(verdicts.request_ids), -1, np.int32)
        starts = verdicts.starts.tolist()
        for i, request_id in enumerate(verdicts.request_ids.tolist()):
            check = self._stop_checks.get(request_id)
            if check is not None:
                cuts[i] = check(verdicts.token_ids[starts[i] : starts[i + 1]].tolist())
        return cuts

    def _update(self, output: RequestUpdate) -> RequestUpdate:
        if output.finish_reason is not None:
            self._stop_checks.pop(output.request_id, None)
        return RequestUpdate(
            output.request_id,
            output.token_ids,
            output.finish_reason,
            output.error,
            output.num_drafted,
            output.num_accepted,
        )
