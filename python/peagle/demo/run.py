"""The demo: three answers without and with speculation, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from peagle.acceptance import Acceptance
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
    """k shares of the windows."""
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
    plain, speculative = _Mode(0), _Mode(llm.num_speculative_tokens)
    total = 2 * (rounds + 1)
    before = Acceptance()
    for index in range(total):
        round_index, second = divmod(index, 2)
        # The order alternates, so that a drift of the machine hits both modes alike.
        mode = speculative if (round_index + second) % 2 else plain
        if index == 2:
            before = Acceptance.of(llm.engine.scheduler.stats(), llm.num_speculative_tokens)
        mode.run(llm, prompts, max_tokens, timed=round_index > 0)
        progress(index + 1, total)
    stats = llm.engine.scheduler.stats()
    acceptance = Acceptance.of(stats, llm.num_speculative_tokens) - before
    tokens = sum(map(len, plain.token_ids[0]))
    return DemoReport(
        identical=all(ids == plain.token_ids[0] for ids in plain.token_ids + speculative.token_ids),
        speedup=median(plain.seconds) / median(speculative.seconds),
        acceptance_length=acceptance.acceptance_length or 1.0,
        accept_by_position=acceptance.accept_by_position,
        tokens_per_s=tokens / median(speculative.seconds),
        tokens_per_s_baseline=tokens / median(plain.seconds),
        k=llm.num_speculative_tokens,
        max_tokens=max_tokens,
        prompts=[r.turns[0] for r in records],
        texts=speculative.texts,
        meta=hardware() | {"dtype": str(llm.target.backend.dtype).removeprefix("torch.")},
    )


class _Mode:
    """Runs of one number of drafts."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts
        self.seconds: list[float] = []
        self.token_ids: list[list[list[int]]] = []
        self.texts: list[str] = []

    def run(self, llm: LLM, prompts: list[TokensPrompt], max_tokens: int, *, timed: bool) -> None:
        """All prompts, one after the other."""
        params = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, num_speculative_tokens=self._num_drafts
        )
        started = time.perf_counter()
        outputs = [llm.generate(prompt, params)[0] for prompt in prompts]
        if timed:
            self.seconds.append(time.perf_counter() - started)
        self.token_ids.append([o.token_ids for o in outputs])
        self.texts = [o.text for o in outputs]
