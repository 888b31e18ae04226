"""The loop: schedule, forward, verify, update, propose."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from peagle._core import DraftPlan, Drafts, RequestStep, Scheduler, StepOutput, Verdicts
from peagle.arguments import integer
from peagle.params import SamplingParams
from peagle.propose.base import Proposer
from peagle.propose.choose import VERIFICATIONS, check_word
from peagle.runner import ModelRunner
from peagle.verify import verify

Reported = tuple[int, float, int, list[tuple[int, float]]]
"""Of one token: (token id, logprob, rank, [(token id, logprob), ...] of the likeliest)."""

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
    logprobs: list[Reported] = field(default_factory=list)
    """Of each token, if the request asked for them."""


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
    verification: str = "coupled"
    """How drafts are verified above temperature 0: coupled, rejection or block."""

    def __post_init__(self) -> None:
        sizes = asdict(self)
        check_word("verification", sizes.pop("verification"), VERIFICATIONS)
        for name, value in sizes.items():
            integer(name, value, 0 if name == "num_speculative_tokens" else 1, 2**31 - 1)


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
        self._draft_plan: DraftPlan | None = None
        self._updates: list[RequestUpdate] = []
        self._stop_checks: dict[int, StopCheck] = {}

    def add(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        eos_token_ids: Sequence[int],
        bad_words: Sequence[Sequence[int]] = (),
        stop_check: StopCheck | None = None,
    ) -> int:
        """Queues a request.

        Args:
            prompt_token_ids: ids of the target's vocabulary.
            params: of which `bad_words` is not read: the engine knows no text.
            eos_token_ids: the model's own ends.
            bad_words: token ids of each.
            stop_check: asked about the tokens of every step.

        Returns:
            The seed that keys the request's noise; drawn where `params` has none.

        Raises:
            PeagleError: a subclass for each bad value; nothing was queued.
        """
        allowed = params.allowed_token_ids
        seed = secrets.randbits(64) if params.seed is None else int(params.seed)
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
            min_tokens=params.min_tokens,
            allowed_token_ids=None if allowed is None else list(allowed),
            bad_words=[list(word) for word in bad_words],
            logit_bias=list((params.logit_bias or {}).items()),
            logits_processor=params.logits_processor,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logprobs=params.logprobs,
            processed_logprobs=params.logprobs_mode == "processed_logprobs",
        )
        if stop_check is not None:
            self._stop_checks[request_id] = stop_check
        return seed

    def abort(self, request_id: int) -> bool:
        """Ends a request in any phase and frees its blocks; false if it is not there."""
        self._stop_checks.pop(request_id, None)
        self._updates = [u for u in self._updates if u.request_id != request_id]
        return self.scheduler.abort(request_id)

    def step(self) -> list[RequestUpdate]:
        """One engine step over all requests.

        If anything raises on the way, only drafts are lost. What was not committed is forgotten
        and can be made again; what was is returned by the next call, which then makes no step.

        Returns:
            The requests that got tokens or ended.
        """
        if not self._updates:
            try:
                self._step()
            except BaseException:
                self.scheduler.cancel_step()
                raise
        updates, self._updates = self._updates, []
        return updates

    def _step(self) -> None:
        clock = time.perf_counter
        started = clock()
        drafts = self._propose()
        drafted = clock()
        plan = self.scheduler.schedule(drafts)
        scheduled = clock()
        logits = self.runner.forward(plan)
        forwarded = clock()
        verdicts = verify(plan, logits)
        verified = clock()
        output = self.scheduler.update(verdicts, self._cuts(verdicts))
        self._updates = [self._update(o) for o in output.outputs]
        self._draft_plan = output.draft
        self._move(output)
        times = self.times
        times.steps += 1
        times.draft += drafted - started
        times.schedule += scheduled - drafted
        times.target += forwarded - scheduled
        times.verify += verified - forwarded
        times.update += clock() - verified

    def _propose(self) -> Drafts | None:
        """The drafts that the last update asked for: made only now, when its tokens are out."""
        plan, self._draft_plan = self._draft_plan, None
        if self.proposer is None or plan is None or not len(plan.request_ids):
            return None
        made = self.proposer.propose(plan)
        laws = made.laws
        return Drafts(
            made.request_ids,
            made.starts,
            made.token_ids,
            made.parents,
            mode=made.mode,
            draft_probs=None if laws is None else laws.probs,
            depth_starts=None if laws is None else laws.starts,
            target_ids=None if laws is None else laws.target_ids,
        )

    def _move(self, output: StepOutput) -> None:
        try:
            self.runner.move(output.moves_src, output.moves_dst)
        except BaseException as error:
            # Some slots moved and some did not: whoever accepted drafts has no usable KV.
            self._updates = [
                self._fail(u, f"moving its KV failed: {error!r}") if u.num_accepted else u
                for u in self._updates
            ]
            raise

    def _fail(self, update: RequestUpdate, error: str) -> RequestUpdate:
        if update.finish_reason is not None:
            return update
        self.abort(update.request_id)
        return replace(update, finish_reason="error", error=error)

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

    def _update(self, output: RequestStep) -> RequestUpdate:
        if output.finish_reason is not None:
            self._stop_checks.pop(output.request_id, None)
        return RequestUpdate(
            output.request_id,
            output.token_ids,
            output.finish_reason,
            output.error,
            output.num_drafted,
            output.num_accepted,
            output.logprobs,
        )
