"""Speed and acceptance of one engine at several numbers of drafts, measured side by side."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from peagle.acceptance import Acceptance
from peagle.backends.threads import num_threads, simd_level
from peagle.engine import RequestUpdate, StepTimes
from peagle.llm import LLM, TokensPrompt
from peagle.params import SamplingParams


@dataclass(frozen=True)
class Result:
    """One K over all prompts and rounds. Times are in milliseconds."""

    k: int
    tokens_per_s: float
    """Median over rounds of token ids per second of whole generate calls."""
    speedup: float | None
    """Over K=0 of the same run."""
    acceptance_length: float | None
    """1 + accepted / windows: the extra token counts."""
    accept_by_position: list[float]
    """k shares of the windows."""
    drafter_share: float
    """Of the step's time."""
    verify_share: float
    target_share: float
    overhead_share: float
    """Everything outside the two forward passes."""
    ttft_ms: float
    """Median time to the first token."""
    inter_token_ms: dict[str, float]
    """p50, p95, p99; a step's time is shared out over the tokens it brought."""
    step_ms: float
    """Median engine step of decoding."""


class Recorder:
    """Listens to one generate call."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self._last = self.started
        self._seen: set[int] = set()
        self.first_token: list[float] = []
        self.inter_token: list[float] = []
        self.steps: list[float] = []

    def __call__(self, updates: list[RequestUpdate]) -> None:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        decoding = False
        for update in updates:
            count = len(update.token_ids)
            if not count:  # it ended with an error
                continue
            if update.request_id in self._seen:
                decoding = True
                self.inter_token.extend([elapsed / count] * count)
            else:
                self._seen.add(update.request_id)
                self.first_token.append(now - self.started)
        if decoding:
            self.steps.append(elapsed)


@dataclass
class _Tally:
    """What the rounds of one K add up to."""

    rates: list[float] = field(default_factory=list)
    recorders: list[Recorder] = field(default_factory=list)
    times: StepTimes = field(default_factory=StepTimes)
    acceptance: Acceptance = field(default_factory=Acceptance)


def run_bench(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    ks: Sequence[int],
    params: dict[str, Any],
    *,
    batch: int = 1,
    rounds: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Result]:
    """Measures every K in alternation: one warm-up round, then `rounds` rounds over all prompts.

    Args:
        prompts: token ids.
        ks: numbers of drafts; 0 is plain decoding, the base of the speed-ups.
        params: keyword arguments of `SamplingParams`, without `num_speculative_tokens`.
        batch: requests that run together.
        progress: told (done, total) rounds x K.
    """
    tallies = {k: _Tally() for k in ks}
    total = (rounds + 1) * len(ks)
    done = 0
    for round_index in range(rounds + 1):
        order = list(ks) if round_index % 2 == 0 else list(ks)[::-1]
        for k in order:
            settings = SamplingParams(**params, num_speculative_tokens=k)
            if round_index == 0:
                _round(llm, prompts[:batch], settings, batch, k, _Tally())
            else:
                _round(llm, prompts, settings, batch, k, tallies[k])
            done += 1
            progress(done, total)
    base = median(tallies[0].rates) if 0 in tallies else None
    return [_result(k, tallies[k], base) for k in ks]


def _round(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batch: int,
    k: int,
    tally: _Tally,
) -> None:
    before = Acceptance.of(llm.engine.scheduler.stats(), k)
    llm.engine.times = StepTimes()
    tokens, seconds = 0, 0.0
    for start in range(0, len(prompts), batch):
        group = [TokensPrompt(prompt_token_ids=p) for p in prompts[start : start + batch]]
        recorder = Recorder()
        outputs = llm.generate(group, params, on_step=recorder)
        seconds += time.perf_counter() - recorder.started
        tokens += sum(len(o.token_ids) for o in outputs)
        tally.recorders.append(recorder)
    tally.rates.append(tokens / seconds)
    tally.acceptance += Acceptance.of(llm.engine.scheduler.stats(), k) - before
    for name, value in asdict(llm.engine.times).items():
        setattr(tally.times, name, getattr(tally.times, name) + value)


def _result(k: int, tally: _Tally, base: float | None) -> Result:
    rate = median(tally.rates)
    total = tally.times.total
    gaps = np.concatenate([r.inter_token for r in tally.recorders] or [[0.0]]) * 1e3
    steps = [s for r in tally.recorders for s in r.steps]
    forwards = tally.times.target + tally.times.draft
    return Result(
        k=k,
        tokens_per_s=rate,
        speedup=rate / base if base else None,
        acceptance_length=tally.acceptance.acceptance_length,
        accept_by_position=tally.acceptance.accept_by_position,
        drafter_share=tally.times.draft / total,
        verify_share=tally.times.verify / total,
        target_share=tally.times.target / total,
        overhead_share=1.0 - forwards / total,
        ttft_ms=1e3 * median([t for r in tally.recorders for t in r.first_token] or [0.0]),
        inter_token_ms={f"p{q}": float(np.percentile(gaps, q)) for q in (50, 95, 99)}
        if gaps.size
        else {},
        step_ms=1e3 * median(steps) if steps else 0.0,
    )


def hardware() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu": _cpu_name(),
        "simd": simd_level(),
        "threads": num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peagle": version("peagle"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.machine()
