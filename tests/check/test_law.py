"""The statistics of `peagle check`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from peagle.check.law import (
    SHIFT,
    VOCAB,
    Sampling,
    chi_square_p_value,
    follows_law,
    law,
    near_tie_target,
    shifted,
    table_target,
)

PLAIN = Sampling(1.0)


def sample(probs: np.ndarray, count: int, length: int, seed: int) -> np.ndarray:
    """Texts of a Markov chain, drawn by numpy."""
    rng = np.random.default_rng(seed)
    texts = np.zeros((count, 1 + length), np.int32)
    texts[:, 0] = np.arange(count) % VOCAB
    for position in range(length):
        cumulative = probs[texts[:, position]].cumsum(axis=1)
        texts[:, position + 1] = (rng.random((count, 1)) > cumulative[:, :-1]).sum(axis=1)
    return texts


@pytest.mark.parametrize(("statistic", "degrees"), [(0.0, 3), (56.0, 56), (900.0, 60), (20.0, 900)])
def test_p_values_are_those_of_scipy(statistic: float, degrees: int) -> None:
    assert chi_square_p_value(statistic, degrees) == pytest.approx(
        stats.chi2.sf(statistic, degrees), rel=1e-9, abs=1e-300
    )


def test_p_values_of_a_right_sampler_are_uniform() -> None:
    probs = law(table_target(), PLAIN)
    p_values = [follows_law(sample(probs, 512, 8, seed), probs).p_value for seed in range(200)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_a_total_variation_of_two_percent_is_noticed_and_nothing_smaller_is_claimed() -> None:
    table = table_target()
    probs = law(table, PLAIN)
    wrong = law(shifted(table, 1.0), PLAIN)
    assert np.abs(probs - wrong).sum(axis=1) / 2 == pytest.approx(SHIFT, abs=1e-6)
    assert follows_law(sample(wrong, 8192, 16, 0), probs).p_value < 1e-9
    assert follows_law(sample(probs, 8192, 16, 0), probs).p_value > 1e-3


def test_an_impossible_token_is_noticed_once_it_comes() -> None:
    sampling = Sampling(0.7, top_k=4)
    probs = law(table_target(), sampling)
    texts = sample(probs, 8192, 16, 0)
    assert follows_law(texts, probs).p_value > 1e-3
    for token in (int(np.flatnonzero(probs[texts[5, 3]] == 0.0)[0]), VOCAB):
        wrong = texts.copy()
        wrong[5, 4] = token
        assert follows_law(wrong, probs).p_value == 0.0


def test_the_near_tie_target_flips_its_argmax_when_shifted() -> None:
    table = near_tie_target()
    right, wrong = law(table, Sampling(0.0)), law(shifted(table, 0.0), Sampling(0.0))
    ordered = np.sort(law(table, PLAIN), axis=1)
    assert ordered[1:, -1] - ordered[1:, -2] == pytest.approx(SHIFT, abs=1e-6)
    assert table[0, np.argmax(right[0])] == np.sort(table[0])[-2]
    assert (right[1:] != wrong[1:]).any(axis=1).all()


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.5, top_k=3), Sampling(1.0, top_p=0.6, min_p=0.1)]
)
def test_laws_are_those_of_a_plain_loop(sampling: Sampling) -> None:
    table = table_target()
    for row, probs in zip(table.astype(np.float64), law(table, sampling), strict=True):
        kept = {i: np.exp((row[i] - row.max()) / sampling.temperature) for i in range(VOCAB)}
        kept = {i: w for i, w in kept.items() if w >= sampling.min_p}
        best = sorted(kept, key=lambda i: -kept[i])[: sampling.top_k or VOCAB]
        total, mass, nucleus = sum(kept[i] for i in best), 0.0, []
        for i in best:
            if mass < sampling.top_p * total:
                nucleus.append(i)
                mass += kept[i]
        expected = [kept[i] / mass if i in nucleus else 0.0 for i in range(VOCAB)]
        assert probs == pytest.approx(expected)
