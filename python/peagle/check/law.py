"""A target whose law is known, and the test whether tokens follow it.

The target is a table: the next token's logits are a function of the last token alone. The law of
each token given the one before it is then known in closed form, at every position of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

VOCAB = 8
SHIFT = 0.02
"""Total variation of the rows that a negative control is given."""
NEVER = 1e-9
"""The expectation that an impossible token counts with, so that the statistic is a number."""
LEAST_EXPECTED = 5.0
"""Cells of a chi-square test with a smaller expectation are merged."""

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Sampling:
    """The parameters of a request that its law depends on."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        filters = {"top_k": (self.top_k, 0), "top_p": (self.top_p, 1.0), "min_p": (self.min_p, 0.0)}
        on = [f"{name}={value:g}" for name, (value, off) in filters.items() if value != off]
        return " ".join([f"T={self.temperature:g}", *on])


def table_target(seed: int = 0) -> Float32Array:
    """Random logits, [VOCAB, VOCAB]: row a holds those that follow token a."""
    return np.random.default_rng(seed).normal(0.0, 1.2, (VOCAB, VOCAB)).astype(np.float32)


def near_tie_target(seed: int = 0) -> Float32Array:
    """A table whose two best tokens lie `SHIFT` apart in probability; in row 0 they are equal."""
    table = table_target(seed).astype(np.float64)
    for token, row in enumerate(table):
        second, best = np.argsort(row)[-2:]
        pair = np.exp(row[[best, second]])
        pair_prob = pair.sum() / np.exp(row).sum()
        share = 0.5 + 0.5 * SHIFT / pair_prob if token else 0.5
        row[best], row[second] = np.log(pair.sum() * share), np.log(pair.sum() * (1.0 - share))
    rounded = table.astype(np.float32)
    rounded[0, np.argsort(rounded[0])[-2:]] = rounded[0].max()
    return rounded


def shifted(table: Float32Array, temperature: float) -> Float32Array:
    """Rows that differ from the table's by `SHIFT` in total variation.

    The best token lost it to the second best, at this temperature (1 if it is 0).
    """
    temperature = temperature or 1.0
    wrong = table.copy()
    for row in wrong:
        probs = np.exp((row - row.max()) / temperature)
        probs /= probs.sum()
        second, best = np.argsort(probs, kind="stable")[-2:]
        row[best] += temperature * np.log1p(-SHIFT / probs[best])
        row[second] += temperature * np.log1p(SHIFT / probs[second])
    return wrong


def law(table: Float32Array, sampling: Sampling) -> Float64Array:
    """[VOCAB, VOCAB]: row a has the probabilities of what follows token a; by sorting."""
    return np.stack([_row_law(row.astype(np.float64), sampling) for row in table])


def _row_law(logits: Float64Array, sampling: Sampling) -> Float64Array:
    order = np.argsort(-logits, kind="stable")
    probs = np.zeros_like(logits)
    if sampling.temperature == 0.0:
        probs[order[0]] = 1.0
        return probs
    weights = np.exp((logits[order] - logits[order[0]]) / sampling.temperature)
    weights[weights < sampling.min_p] = 0.0
    if sampling.top_k:
        weights[sampling.top_k :] = 0.0
    before = np.cumsum(weights) - weights
    weights[before >= sampling.top_p * weights.sum()] = 0.0
    probs[order] = weights / weights.sum()
    return probs


@dataclass(frozen=True)
class Verdict:
    """How well tokens follow a law."""

    statistic: float
    """Chi-square, summed over last tokens."""
    degrees: int
    p_value: float


def follows_law(texts: Int32Array, probs: Float64Array) -> Verdict:
    """Chi-square test of the tokens given the ones before them.

    Args:
        texts: [N, 1 + length], the prompt's token and those that followed; ids of VOCAB and above
            are impossible.
        probs: [VOCAB, VOCAB], the law.
    """
    last, new = np.minimum(texts[:, :-1], VOCAB), np.minimum(texts[:, 1:], VOCAB)
    pairs = np.bincount((last * (VOCAB + 1) + new).ravel(), minlength=(VOCAB + 1) ** 2)
    counts = pairs.reshape(VOCAB + 1, VOCAB + 1)
    tests = [_chi_square(counts[token], np.append(probs[token], 0.0)) for token in range(VOCAB)]
    statistic = sum(added for added, _ in tests)
    degrees = sum(free for _, free in tests)
    return Verdict(statistic, degrees, chi_square_p_value(statistic, degrees))


def _chi_square(counts: npt.NDArray[Any], probs: Float64Array) -> tuple[float, int]:
    """Statistic and degrees of freedom of one multinomial."""
    impossible = counts[probs == 0.0].sum()
    if impossible:
        return float(impossible) / NEVER, 1
    expected = counts.sum() * probs
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    cells = max(int((expected >= LEAST_EXPECTED).sum()), 1)
    if expected[cells:].sum() >= LEAST_EXPECTED:
        cells += 1
    merged = [*range(cells)]
    observed, wanted = np.add.reduceat(counts, merged), np.add.reduceat(expected, merged)
    if cells == 1:
        return 0.0, 0
    return float(((observed - wanted) ** 2 / wanted).sum()), cells - 1


def chi_square_p_value(statistic: float, degrees: int) -> float:
    """The probability of a statistic at least as large; 1 without any degree of freedom."""
    if degrees == 0:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
