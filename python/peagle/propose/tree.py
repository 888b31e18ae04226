"""Token trees from one drafter pass: P-EAGLE gives the distributions of all depths at once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple


class Candidates(NamedTuple):
    """Tokens that may follow a node."""

    log_probs: Sequence[float]
    """How likely the target is to take each, descending."""
    ids: Sequence[int]


Expand = Callable[[int, int], Candidates]
"""(depth, id of the node's token) -> what may follow it at that depth; the id is -1 for the last
committed token."""


def grow(expand: Expand, depths: int, budget: int) -> list[tuple[int, int]]:
    """The nodes whose paths are most likely by the drafter's own estimate, best first.

    The estimate of a path is the product of its nodes' probabilities. A sure drafter gets a chain,
    a doubtful one siblings.

    Args:
        expand: asked once for each node that may still get children.
        depths: most nodes of a path.
        budget: most nodes.

    Returns:
        (id, parent) of each node, in the order of growth, so that parents come first; the parent
        -1 is the last committed token. Equal paths go to the earlier candidate.
    """
    nodes: list[tuple[int, int]] = []
    # (minus the path's log probability, entry order, depth, rank, parent, siblings, the parent's)
    frontier: list[tuple[float, int, int, int, int, Candidates, float]] = []
    entered = 0

    def enter(depth: int, rank: int, parent: int, siblings: Candidates, above: float) -> None:
        nonlocal entered
        if rank < len(siblings.ids):
            score = above - siblings.log_probs[rank]
            heapq.heappush(frontier, (score, entered, depth, rank, parent, siblings, above))
            entered += 1

    if depths and budget:
        enter(0, 0, -1, expand(0, -1), 0.0)
    while frontier and len(nodes) < budget:
        score, _, depth, rank, parent, siblings, above = heapq.heappop(frontier)
        nodes.append((siblings.ids[rank], parent))
        if depth + 1 < depths and len(nodes) < budget:
            enter(depth + 1, 0, len(nodes) - 1, expand(depth + 1, nodes[-1][0]), score)
        enter(depth, rank + 1, parent, siblings, above)
    return nodes


@cache
def fixed_shape(budget: int, width: int) -> tuple[int, ...]:
    """Parents of a tree that depends on nothing but the number of nodes.

    Sampled drafts want this: a shape that follows what was drawn would bias rejection sampling. It
    is the best-first tree of a drafter whose r-th draw of any depth is right with probability
    0.55, 0.14, 0.035, ...: mostly a chain, with siblings near the root.

    Args:
        budget: nodes.
        width: most siblings; 1 is a chain.
    """
    siblings = Candidates([math.log(0.55 * 0.25**rank) for rank in range(width)], range(width))
    return tuple(parent for _, parent in grow(lambda depth, before: siblings, budget, budget))
