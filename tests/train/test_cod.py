"""COD sampling and its attention mask are what the paper says."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from peagle.train.cod import attention_mask, sample_elements


@given(
    length=st.integers(2, 60),
    prompt=st.integers(0, 40),
    depths=st.integers(1, 8),
    ratio=st.floats(0.1, 1.0),
    seed=st.integers(0, 2**31),
)
def test_elements_are_nested_supervised_and_inside_the_sequence(
    length: int, prompt: int, depths: int, ratio: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    elements = sample_elements(length, prompt, depths, ratio, generator)
    by_depth = [set(elements.anchors[elements.depths == d].tolist()) for d in range(depths)]
    assert by_depth[0] == set(range(length - 1))
    for shallow, deep in itertools.pairwise(by_depth):
        assert deep <= shallow
    for anchor, depth, counts in zip(
        elements.anchors.tolist(),
        elements.depths.tolist(),
        elements.supervised.tolist(),
        strict=True,
    ):
        # The target's distribution of the predicted token must exist; depth 0 sees the next token.
        assert anchor + depth + 1 < length
        assert counts == (anchor + 2 + (depth if depth else 0) >= prompt or depth > 0)


def test_depths_shrink_by_the_ratio() -> None:
    elements = sample_elements(1001, 0, 4, 0.5, torch.Generator().manual_seed(0))
    counts = [int((elements.depths == d).sum()) for d in range(4)]
    assert counts[0] == 1000
    assert all(abs(counts[d + 1] - counts[d] / 2) <= 2 for d in range(3))


def test_an_element_sees_what_a_drafting_row_sees() -> None:
    anchors = torch.tensor([0, 1, 2, 3, 1, 3, 1, 3])
    depths = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    mask = attention_mask(anchors, depths)
    for query in range(len(anchors)):
        seen = {(int(anchors[k]), int(depths[k])) for k in range(len(anchors)) if mask[query, k]}
        anchor, depth = int(anchors[query]), int(depths[query])
        assert seen == {(a, 0) for a in range(anchor + 1)} | {(anchor, d) for d in range(depth + 1)}
