"""The loop: schedule, forward, verify, update, propose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from peagle._core import Drafts, Scheduler, StepOutput, Verdicts
from peagle.params import SamplingParams
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


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of the scheduler."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    """Requests that run together."""
    max_num_batched_tokens: int
    """Rows of a step."""
    max_model_len: int
    num_speculative_tokens: int
    """Most drafts a step; 0 is off."""


class Engine:
    """Runs requests together, one step at a time. Knows token ids, not text."""

    def __init__(
        self, runner: ModelRunner, proposer: Proposer | None, config: EngineConfig
    ) -> None:
        """
        Raises:
            PeagleError: sizes that do not go together.
        """
        self.scheduler = Scheduler(**asdict(config))
        self.runner = runner
        self.proposer = proposer
        self.times = StepTimes()
        self._drafts: Drafts | None = None
        self._stop_checks: dict[int, StopCheck] = {}

    def add(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        eos_token_ids: Sequence[int],
        stop_check: StopCheck | None = None,
    ) -> None:
        """Queues a request.

        Args:
            seed: 64-bit; keys the request's noise.
            eos_token_ids: the model's own ends.
            stop_check: asked about the tokens of every step.

        Raises:
            PeagleError: a subclass for each bad value; nothing was queued.
        """
        self.scheduler.add(
            request_id,
            np.asarray(prompt_token_ids, np.int32),
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=seed,
            ignore_eos=params.ignore_eos,
            eos_token_ids=list(eos_token_ids),
            stop_token_ids=list(params.stop_token_ids),
            num_speculative_tokens=params.num_speculative_tokens,
        )
        if stop_check is not None:
            self._stop_checks[request_id] = stop_check

    def abort(self, request_id: int) -> bool:
        """Ends a request in any phase and frees its blocks; false if it is not there."""
        self._stop_checks.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def step(self) -> list[RequestUpdate]:
        """One engine step over all requests.

        If anything raises on the way, the step is forgotten and can be made again.

        Returns:
            The requests that got tokens or ended.
        """
        try:
            return self._step()
        except BaseException:
            self.scheduler.cancel_step()
            raise

    def _step(self) -> list[RequestUpdate]:
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
