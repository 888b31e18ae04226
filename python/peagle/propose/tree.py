"""Token trees from one drafter pass: P-EAGLE gives the distributions of all depths at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Candidates(NamedTuple):
    """Tokens that may follow a node."""

    log_probs: Sequence[float]
    """Descending."""
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


def grow_tree(log_probs: npt.NDArray[np.float32], budget: int) -> list[tuple[int, int, int]]:
    """`grow` where a depth does not know which token was taken before it.

    Args:
        log_probs: [depths, width], descending in each row: the candidates of each depth.
        budget: most nodes.

    Returns:
        (depth, rank, parent) of each node.
    """
    depths, width = log_probs.shape
    table = log_probs.tolist()

    def expand(depth: int, _: int) -> Candidates:
        return Candidates(table[depth], range(depth * width, (depth + 1) * width))

    return [(*divmod(node, width), parent) for node, parent in grow(expand, depths, budget)]
