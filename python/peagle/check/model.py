"""A real model's cases: speculation on equals off, and live drafts equal drafts from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from peagle.check.report import Case, Progress, equality
from peagle.datasets import demo_prompts
from peagle.engine import RequestUpdate
from peagle.errors import ConfigError
from peagle.llm import LLM, TokensPrompt
from peagle.params import SamplingParams
from peagle.propose.base import Proposals, Proposer

SHAPES = ("chain", "tree")
KS, QUICK_KS = (1, 3, 7), (5,)
MAX_TOKENS, QUICK_MAX_TOKENS = 64, 24
WINDOWS, QUICK_WINDOWS = 24, 6
"""Windows whose drafts are made again from scratch."""
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}


def check_model(
    target: str,
    head: str,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quick: bool = False,
    progress: Progress = lambda done, total: None,
) -> list[Case]:
    """Runs a few prompts with and without speculation.

    Args:
        target, head, device, dtype: as `LLM` takes them.
        quick: one K, shorter texts.
        progress: told (done, total) cases.

    Raises:
        ConfigError: no head.
        PeagleError: a model that cannot be loaded.
    """
    ks = QUICK_KS if quick else KS
    total = len(SHAPES) * 2 * len(ks) + 1
    cases: list[Case] = []
    for shape in SHAPES:
        llm = LLM(
            target,
            head=head,
            device=device,
            dtype=dtype,
            num_speculative_tokens=max(ks),
            draft_shape=shape,
        )
        if llm.head is None:
            raise ConfigError(
                "check compares speculation on with off, and there is no head",
                hint="name the folder of a head",
            )
        checks = _ModelCheck(llm, shape, quick=quick)
        for case in checks.on_equals_off(ks):
            cases.append(case)
            progress(len(cases), total)
        if shape == "chain":
            cases.append(checks.live_drafts(max(ks)))
            progress(len(cases), total)
    return cases


@dataclass(frozen=True)
class _ModelCheck:
    """The cases of one engine."""

    llm: LLM
    shape: str
    quick: bool

    @property
    def max_tokens(self) -> int:
        return QUICK_MAX_TOKENS if self.quick else MAX_TOKENS

    def on_equals_off(self, ks: tuple[int, ...]) -> Iterator[Case]:
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in _prompts(self.llm)]
        for method, sampling in (("greedy", {}), ("coupled", SAMPLED)):
            truth = self._token_ids(prompts, 0, sampling)
            for k in ks:
                texts = self._token_ids(prompts, k, sampling)
                differing = sum(a != b for a, b in zip(truth, texts, strict=True))
                yield self._case(f"model: speculation on equals off, K={k}", differing, method)

    def _token_ids(
        self, prompts: list[TokensPrompt], k: int, sampling: dict[str, Any]
    ) -> list[list[int]]:
        params = SamplingParams(max_tokens=self.max_tokens, num_speculative_tokens=k, **sampling)
        return [output.token_ids for output in self.llm.generate(prompts, params)]

    def live_drafts(self, k: int) -> Case:
        """The engine's drafts, made from caches, against a fresh pass over all tokens."""
        windows = QUICK_WINDOWS if self.quick else WINDOWS
        seen = _windows(self.llm, _prompts(self.llm)[0], self.max_tokens)[:windows]
        differing = sum(drafts != self.llm.propose(tokens, len(drafts)) for tokens, drafts in seen)
        return self._case(f"model: live drafts equal drafts from scratch, K={k}", differing, "none")

    def _case(self, name: str, differences: int, method: str) -> Case:
        return equality(name, differences, method=method, drafts="head", shape=self.shape)


def _prompts(llm: LLM) -> list[list[int]]:
    """Token ids of a few prompts; without a tokenizer, ids that walk through the vocabulary."""
    tokenizer = llm.tokenizer
    if tokenizer is None:
        vocab = llm.target.config.vocab_size
        return [[(7 + 31 * i * j) % vocab for i in range(12)] for j in (1, 2, 3)]
    encode: Callable[[Any], list[int]] = (
        llm.encode_chat
        if tokenizer.chat_template
        else lambda messages: llm.encode(messages[0]["content"])
    )
    return [encode(record.messages) for record in demo_prompts()]


def _windows(llm: LLM, prompt: list[int], max_tokens: int) -> list[tuple[list[int], list[int]]]:
    """(committed tokens, drafts) of every window of one greedy text."""
    proposer = llm.engine.proposer
    if proposer is None:
        raise ConfigError(
            "live drafts are asked for, and the engine has no drafter", hint="choose a head"
        )
    recorder = _Recorder(proposer, prompt)
    llm.engine.proposer = recorder
    try:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        llm.generate(TokensPrompt(prompt_token_ids=prompt), params, on_step=recorder.commit)
    finally:
        llm.engine.proposer = proposer
    return recorder.windows


class _Recorder:
    """A proposer that notes what another one drafts for a single request."""

    def __init__(self, proposer: Proposer, prompt: list[int]) -> None:
        self.proposer = proposer
        self.taps = proposer.taps
        self.observe, self.move = proposer.observe, proposer.move
        self.windows: list[tuple[list[int], list[int]]] = []
        self._committed = list(prompt)

    def commit(self, updates: list[RequestUpdate]) -> None:
        """Hears which tokens a step committed."""
        for update in updates:
            self._committed += update.token_ids

    def propose(self, plan: Any) -> Proposals:
        """Drafts of the other one."""
        made = self.proposer.propose(plan)
        drafts = made.token_ids.tolist()
        if drafts:
            self.windows.append((list(self._committed), drafts))
        return made
