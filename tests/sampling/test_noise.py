"""The noise in torch: equal to the core's to the bit, and to the vectors of the specification."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle import _core
from peagle.check.noise import load_vectors
from peagle.sampling.noise import Purpose, exponentials, noise_key, threefry2x32

WORD = st.integers(0, 2**32 - 1)


def torch_bits(
    seed: int, sample: int, purpose: Purpose, tokens: list[int], positions: list[int]
) -> list[int]:
    high, low = threefry2x32(
        noise_key(seed, sample, purpose), (torch.tensor(tokens), torch.tensor(positions))
    )
    return [h << 32 | w for h, w in zip(high.tolist(), low.tolist(), strict=True)]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    sample=WORD,
    purpose=st.sampled_from(list(Purpose)),
    counters=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=20),
)
def test_bits_equal_the_cores(
    seed: int, sample: int, purpose: Purpose, counters: list[tuple[int, int]]
) -> None:
    tokens, positions = map(list, zip(*counters, strict=True))
    core = _core.noise_bits(
        seed, sample, purpose, np.array(tokens, np.uint32), np.array(positions, np.uint32)
    )
    assert core.tolist() == torch_bits(seed, sample, purpose, tokens, positions)


def test_the_vectors_hold_in_torch() -> None:
    vectors = load_vectors()
    assert len(vectors.generator) >= 3
    assert {v.purpose for v in vectors.streams} == set(Purpose)
    for vector in vectors.generator:
        words = threefry2x32(
            (torch.tensor(vector.key[0]), torch.tensor(vector.key[1])),
            (torch.tensor(vector.counter[0]), torch.tensor(vector.counter[1])),
        )
        assert [int(word) for word in words] == vector.result
    for stream in vectors.streams:
        (bits,) = torch_bits(
            stream.seed, stream.sample, stream.purpose, [stream.token_id], [stream.position]
        )
        assert bits == stream.bits
        words = (torch.tensor(bits >> 32), torch.tensor(bits & 0xFFFFFFFF))
        assert math.isclose(float(exponentials(words)), stream.exponential, rel_tol=1e-15)


def test_exponentials_are_finite_and_positive_for_all_bits() -> None:
    ends = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
    high, low = torch.meshgrid(ends, ends, indexing="ij")
    values = exponentials((high, low))
    assert values.isfinite().all()
    assert (values > 0).all()
    assert (values.diff(dim=0) > 0).all()
