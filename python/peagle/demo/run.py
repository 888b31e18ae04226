"""The demo: three answers without and with speculation, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from peagle.bench import hardware
from peagle.datasets import demo_prompts
from peagle.errors import ConfigError
from peagle.llm import LLM, TokensPrompt
from peagle.params import SamplingParams


@dataclass(frozen=True)
class DemoReport:
    """What the demo found. Rates are of whole generate calls, prompts included."""

    identical: bool
    speedup: float
    """Median wall time without speculation over that with it."""
    acceptance_length: float
    """1 + accepted / windows: the extra token counts."""
    accept_by_position: list[float]
    tokens_per_s: float
    tokens_per_s_baseline: float
    k: int
    max_tokens: int
    prompts: list[str]
    texts: list[str]
    meta: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def run_demo(
    *,
    max_tokens: int = 256,
    rounds: int = 3,
    k: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DemoReport:
    """One warm-up of each mode, then `rounds` alternating rounds over the three prompts.

    Raises:
        PeagleError: the demo target is not installed, or an argument is out of range.
    """
    if rounds < 1:
        raise ConfigError(f"rounds is {rounds}, expected at least 1")
    if k is not None and k < 1:
        raise ConfigError(f"k is {k}, expected at least 1", hint="the demo compares with plain")
    llm = LLM("demo", num_speculative_tokens=k, max_num_seqs=1)
    records = demo_prompts()
    prompts = [TokensPrompt(prompt_token_ids=llm.encode_chat(r.messages)) for r in records]
    modes = (0, llm.num_speculative_tokens)
    seconds: dict[int, list[float]] = {mode: [] for mode in modes}
    tokens: dict[int, list[list[int]]] = {}
    texts: list[str] = []
    identical = True
    for round_index in range(rounds + 1):
        for mode in modes if round_index % 2 == 0 else modes[::-1]:
            params = SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, num_speculative_tokens=mode
            )
            if round_index == 1 and mode:
                before = llm.engine.scheduler.stats()
            started = time.perf_counter()
            outputs = [llm.generate(prompt, params)[0] for prompt in prompts]
            elapsed = time.perf_counter() - started
            if round_index:
                seconds[mode].append(elapsed)
            found = [o.token_ids for o in outputs]
            identical &= tokens.setdefault(0, found) == found
            texts = [o.text for o in outputs]
            progress(round_index * 2 + len(seconds[mode]), 2 * (rounds + 1))
    after = llm.engine.scheduler.stats()
    windows = after["windows"] - before["windows"]
    accepted = after["accepted"] - before["accepted"]
    earlier = before["accepted_by_position"]
    positions = [
        (count - (earlier[i] if i < len(earlier) else 0)) / windows
        for i, count in enumerate(after["accepted_by_position"])
    ]
    total = max_tokens * len(prompts)
    plain, speculative = (median(seconds[mode]) for mode in modes)
    return DemoReport(
        identical=identical,
        speedup=plain / speculative,
        acceptance_length=1.0 + accepted / windows,
        accept_by_position=positions,
        tokens_per_s=total / speculative,
        tokens_per_s_baseline=total / plain,
        k=llm.num_speculative_tokens,
        max_tokens=max_tokens,
        prompts=[r.turns[0] for r in records],
        texts=texts,
        meta=hardware() | {"dtype": str(llm.target.backend.dtype).removeprefix("torch.")},
    )
