"""Token trees from one drafter pass: P-EAGLE gives the distributions of all depths at once."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt


def grow_tree(log_probs: npt.NDArray[np.float32], budget: int) -> list[tuple[int, int, int]]:
    """The nodes whose paths are most likely by the drafter's own estimate, best first.

    The estimate of a path is the product of its nodes' probabilities: the depths of one pass do
    not know which token was taken before them. A sure drafter gets a chain, a doubtful one
    siblings.

    Args:
        log_probs: [depths, width], descending in each row: the candidates of each depth.
        budget: most nodes.

    Returns:
        (depth, rank, parent) of each node, in the order of growth, so that parents come first;
        the parent -1 is the last committed token. Equal paths go to the earlier candidate.
    """
    depths, width = log_probs.shape
    table = log_probs.tolist()
    nodes: list[tuple[int, int, int]] = []
    # (minus the path's log probability, entry order, depth, rank, parent, that of the parent)
    frontier = [(-table[0][0], 0, 0, 0, -1, 0.0)] if depths and width else []
    entered = 1
    while frontier and len(nodes) < budget:
        score, _, depth, rank, parent, above = heapq.heappop(frontier)
        nodes.append((depth, rank, parent))
        if depth + 1 < depths:
            child = (score - table[depth + 1][0], entered, depth + 1, 0, len(nodes) - 1, score)
            heapq.heappush(frontier, child)
            entered += 1
        if rank + 1 < width:
            sibling = (above - table[depth][rank + 1], entered, depth, rank + 1, parent, above)
            heapq.heappush(frontier, sibling)
            entered += 1
    return nodes
