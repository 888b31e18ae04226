"""COD (conditional drop-token) sampling: which (anchor, depth) elements of a sequence to train on.

P-EAGLE (arXiv 2602.01469, sections 3 and 3.1; the sampling comes from PARD). Depth 0 keeps every
position; depth d keeps a share ratio^d of the supervised anchors, nested, so that an element's
shallower siblings are there to be attended to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Elements:
    """The rows of one sequence in training order: depth 0 first, then depth 1, ...

    An element (a, d) sits at RoPE position a + d and predicts token a + d + 2.
    """

    anchors: torch.Tensor
    """[N] int64"""
    depths: torch.Tensor
    """[N] int64"""
    supervised: torch.Tensor
    """[N] bool: whether the predicted token counts in the loss"""


def sample_elements(
    length: int,
    first_supervised: int,
    num_depths: int,
    ratio: float,
    generator: torch.Generator,
) -> Elements:
    """Draws the elements of a sequence.

    Args:
        length: tokens in the sequence.
        first_supervised: index of the first token whose prediction counts (the prompt's length).
        num_depths: K_train.
        ratio: share of a depth's anchors that the next depth keeps, in (0, 1].
        generator: decides which are kept.
    """
    # Depth 0 needs token a + 1 as input and the target's distribution at a + 1.
    all_anchors = torch.arange(length - 1)
    kept = all_anchors[all_anchors + 2 >= first_supervised]
    anchors, depths = [all_anchors], [torch.zeros_like(all_anchors)]
    supervised = [all_anchors + 2 >= first_supervised]
    for depth in range(1, num_depths):
        kept = kept[kept + depth + 1 < length]
        count = max(1, round(len(kept) * ratio)) if len(kept) else 0
        order = torch.randperm(len(kept), generator=generator)[:count]
        kept = kept[order.sort().values]
        anchors.append(kept)
        depths.append(torch.full_like(kept, depth))
        supervised.append(torch.ones_like(kept, dtype=torch.bool))
    return Elements(torch.cat(anchors), torch.cat(depths), torch.cat(supervised))


def attention_mask(anchors: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
    """Who sees whom: [N, N] bool, rows are queries.

    An element sees the depth-0 elements up to its anchor and the elements of its own anchor up to
    its own depth: what a row sees when drafting (section 3.1).
    """
    context = (depths[None, :] == 0) & (anchors[None, :] <= anchors[:, None])
    chain = (anchors[None, :] == anchors[:, None]) & (depths[None, :] <= depths[:, None])
    return context | chain
