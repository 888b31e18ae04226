"""The drafters of the trials: a table of laws in place of a head, and the ways to choose drafts.

Like a P-EAGLE head, the drafter knows the law of each depth given the last committed token, and not
the tokens between.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peagle._core import DraftPlan, Drafts
from peagle.check.law import VOCAB, Float32Array, Float64Array, Int32Array

Nodes = list[tuple[int, int, int]]
"""(depth, rank, parent) of each node; the parent -1 is the last committed token."""

CHAIN: Nodes = [(depth, 0, depth - 1) for depth in range(7)]
TREE: Nodes = [(0, 0, -1), (0, 1, -1), (1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 2), (2, 1, 2)]
SHAPES = {"chain": CHAIN, "tree": TREE}
"""Trees of seven nodes; the first k nodes of a tree are a tree."""

Choose = Callable[[DraftPlan, Nodes], Int32Array]
"""Tokens [R, nodes] for a draft plan's requests; siblings differ."""


class Drafter:
    """Proposes trees of one shape, of the tokens that `choose` picks."""

    def __init__(self, choose: Choose, shape: str) -> None:
        self._choose = choose
        self._nodes = SHAPES[shape]

    def propose(self, plan: DraftPlan, k: int) -> Drafts:
        """Drafts for the requests of a draft plan: k nodes, or as many as it asks for."""
        nodes = self._nodes[:k]
        tokens = self._choose(plan, nodes)
        wanted = np.arange(len(nodes)) < plan.k[:, None]
        parents = np.broadcast_to(np.array([node[2] for node in nodes], np.int32), wanted.shape)
        return Drafts(
            plan.request_ids,
            np.concatenate([[0], np.cumsum(wanted.sum(axis=1))]).astype(np.int32),
            tokens[wanted],
            parents[wanted],
        )


def depth_laws(table: Float32Array, seed: int = 1) -> Float64Array:
    """Laws of a drafter that has learnt a target's table roughly, [VOCAB, depths, VOCAB]: of the
    token at a depth, given the last committed one.
    """
    noise = np.random.default_rng(seed).normal(0.0, 0.6, table.shape)
    weights = np.exp(table + noise)
    step = weights / weights.sum(axis=1, keepdims=True)
    laws = [step]
    for _ in range(len(CHAIN) - 1):
        laws.append(laws[-1] @ step)
    return np.stack(laws, axis=1)


def greedy(laws: Float64Array) -> Choose:
    """The likeliest tokens of each depth."""
    ranked = np.argsort(-laws, axis=2, kind="stable").astype(np.int32)

    def choose(plan: DraftPlan, nodes: Nodes) -> Int32Array:
        last = np.minimum(plan.last_token, VOCAB - 1)
        depths, ranks = [node[0] for node in nodes], [node[1] for node in nodes]
        return ranked[last[:, None], depths, ranks]

    return choose
