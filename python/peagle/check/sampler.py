"""The sampler's cases: known laws, drafter-invariance, noise, and controls that must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle
from typing import Any

import numpy as np

from peagle.check import drafters
from peagle.check.drafters import CHOICES, SHAPES, Drafter, depth_laws
from peagle.check.law import (
    VOCAB,
    Float32Array,
    Int32Array,
    Sampling,
    follows_law,
    law,
    near_tie_target,
    shifted,
    table_target,
)
from peagle.check.noise import load_vectors, mismatches
from peagle.check.report import Case, CheckReport, Progress, equality
from peagle.check.trials import Trials, run_trials

LENGTH = 16
"""Tokens of a text."""
TEXTS, QUICK_TEXTS = 8192, 4096
"""Texts of a law: 131,072 tokens, or half of that."""
ALPHA = 1e-3
"""Probability that a right sampler fails somewhere, shared out over the cases with a law."""

TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
FILTERS: tuple[dict[str, Any], ...] = ({}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.15})
ALL_FILTERS: dict[str, Any] = {"top_k": 5, "top_p": 0.9, "min_p": 0.05}
DEPTHS = (7, 3, 1)
"""Numbers of drafts, taken in turn."""


@dataclass(frozen=True)
class Mode:
    """A method of verification with a way to choose drafts."""

    method: str
    drafts: str
    shapes: tuple[str, ...] = tuple(SHAPES)
    invariant: bool = True
    """Whether the text may not depend on the drafts."""

    @property
    def verification(self) -> str:
        """The engine's argument; at temperature 0 the argmax is followed under all of them."""
        return "coupled" if self.method == "greedy" else self.method


MODES = (
    Mode("greedy", "greedy"),
    Mode("coupled", "greedy"),
    Mode("coupled", "coupled"),
    Mode("coupled", "sampled"),
    Mode("rejection", "sampled", invariant=False),
    Mode("block", "sampled", shapes=("chain",), invariant=False),
)
"""Everything that the engine can run; a new method or drafting mode is one line."""


@dataclass(frozen=True)
class _Setting:
    """One case of a mode, before it runs."""

    mode: Mode
    shape: str
    sampling: Sampling
    k: int
    texts: int
    number: int
    """Settings do not share seeds."""

    @property
    def target(self) -> Float32Array:
        return near_tie_target() if self.mode.method == "greedy" else table_target()

    @property
    def trials(self) -> Trials:
        prompts = np.arange(self.texts, dtype=np.int32) % VOCAB
        return Trials(
            self.sampling,
            prompts,
            LENGTH,
            self.k,
            self.mode.verification,
            first_seed=self.number * TEXTS,
        )

    @property
    def drafter(self) -> Drafter:
        return Drafter(depth_laws(self.target), CHOICES[self.mode.drafts], self.shape)

    def case(self, name: str, texts: Int32Array, alpha: float, *, control: bool = False) -> Case:
        """Whether texts follow the law of the target."""
        found = follows_law(texts, law(self.target, self.sampling))
        return Case(
            f"{name}, {self.sampling} K={self.k}",
            self.mode.method,
            self.mode.drafts,
            self.shape,
            found.statistic,
            found.p_value,
            negative_control=control,
            passed=(found.p_value < alpha) == control,
        )


def check_sampler(
    *, quick: bool = False, progress: Progress = lambda done, total: None
) -> CheckReport:
    """Runs every case; the same numbers each time.

    Args:
        quick: one set of parameters and half the trials for each mode and shape.
        progress: told (done, total) cases.
    """
    texts = QUICK_TEXTS if quick else TEXTS
    settings = list(_settings(texts, quick=quick))
    controlled = list({(s.mode.method, s.mode.drafts, s.shape): s for s in settings}.values())
    alpha = ALPHA / (len(settings) + 3 * len(controlled))
    jobs: list[Callable[[], Case]] = [_noise]
    jobs += [lambda s=s: _law(s, alpha) for s in settings]  # type: ignore[misc]
    for setting in controlled:
        jobs += _controls(setting, alpha)
    for setting in controlled:
        if setting.mode.invariant:
            jobs += _equalities(replace(setting, k=DEPTHS[0], texts=texts // 8))
    cases = []
    for job in jobs:
        cases.append(job())
        progress(len(cases), len(jobs))
    return CheckReport(cases)


def _settings(texts: int, *, quick: bool) -> Iterator[_Setting]:
    number = count()
    for mode in MODES:
        greedy = mode.method == "greedy"
        parameters = _quick_parameters(greedy) if quick else _parameters(greedy)
        for shape in mode.shapes:
            for sampling, k in parameters:
                size = texts // 8 if greedy else texts
                yield _Setting(mode, shape, sampling, k, size, next(number))


def _parameters(greedy: bool) -> list[tuple[Sampling, int]]:
    """Sampling parameters, each with a number of drafts."""
    if greedy:
        return [(Sampling(0.0), k) for k in DEPTHS]
    crossed = [Sampling(t, **f) for t in TEMPERATURES for f in (*FILTERS, ALL_FILTERS)]
    return list(zip(crossed, cycle(DEPTHS)))


def _quick_parameters(greedy: bool) -> list[tuple[Sampling, int]]:
    return [(Sampling(0.0) if greedy else Sampling(0.7, **ALL_FILTERS), DEPTHS[0])]


def _noise() -> Case:
    return equality(
        "noise vectors", mismatches(load_vectors()), method="noise", drafts="none", shape="none"
    )


def _law(setting: _Setting, alpha: float) -> Case:
    texts = run_trials(setting.trials, setting.target, setting.drafter)
    return setting.case("law", texts, alpha)


def _controls(setting: _Setting, alpha: float) -> list[Callable[[], Case]]:
    """What must be noticed: rows that are not the target's, noise used twice, false draft_probs."""
    if setting.mode.method == "greedy":
        return [lambda: _shifted_rows(setting, alpha)]
    plain = replace(setting, sampling=Sampling(1.0), k=DEPTHS[0])
    controls = [lambda: _shifted_rows(plain, alpha), lambda: _noise_twice(plain, alpha)]
    if not setting.mode.invariant:
        controls.append(lambda: _false_probs(plain, alpha))
    return controls


def _shifted_rows(setting: _Setting, alpha: float) -> Case:
    wrong = shifted(setting.target, setting.sampling.temperature)
    texts = run_trials(setting.trials, wrong, setting.drafter)
    return setting.case("control: shifted rows", texts, alpha, control=True)


def _noise_twice(setting: _Setting, alpha: float) -> Case:
    """The second token's request has the seed and the position of the first one's."""
    first = replace(setting.trials, length=1)
    start = run_trials(first, setting.target, setting.drafter)
    second = replace(first, prompts=start[:, 1])
    texts = run_trials(second, setting.target, setting.drafter)
    both = np.concatenate([start, texts[:, 1:]], axis=1)
    return setting.case("control: a noise key used twice", both, alpha, control=True)


def _false_probs(setting: _Setting, alpha: float) -> Case:
    drafter = Drafter(depth_laws(setting.target), drafters.falsely_sampled, setting.shape)
    texts = run_trials(setting.trials, setting.target, drafter)
    return setting.case("control: false draft_probs", texts, alpha, control=True)


def _equalities(setting: _Setting) -> list[Callable[[], Case]]:
    """The text is a function of the seed: no drafts, these drafts, any drafts."""
    shape = setting.shape

    def case(name: str, other: Drafter | None, seed: int = 0) -> Case:
        trials = replace(setting.trials, first_seed=setting.trials.first_seed + seed)
        texts = run_trials(setting.trials, setting.target, setting.drafter)
        others = run_trials(trials, setting.target, other)
        return equality(
            f"{name}, {setting.sampling} K={setting.k}",
            int((texts != others).any(axis=1).sum()),
            method=setting.mode.method,
            drafts=setting.mode.drafts,
            shape=shape,
            negative_control=seed > 0,
        )

    wrong = Drafter(1.0 - depth_laws(setting.target), drafters.greedy, shape)
    jobs = [lambda: case("speculation off", None), lambda: case("drafts that are wrong", wrong)]
    if setting.sampling.temperature > 0.0:
        jobs.append(lambda: case("control: other seeds", None, seed=1))
    return jobs
