"""The drafters of the trials: a table of laws in place of a head, and the ways to choose drafts.

Like a P-EAGLE head, the drafter knows the law of each depth given the last committed token, and not
the tokens between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from peagle._core import DraftPlan, Drafts, coupled_candidates, sample_drafts
from peagle.check.law import VOCAB, Float32Array, Float64Array, Int32Array

Nodes = list[tuple[int, int, int]]
"""(depth, rank, parent) of each node; the parent -1 is the last committed token."""

CHAIN: Nodes = [(depth, 0, depth - 1) for depth in range(7)]
TREE: Nodes = [(0, 0, -1), (0, 1, -1), (1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 2), (2, 1, 2)]
SHAPES = {"chain": CHAIN, "tree": TREE}
"""Trees of seven nodes; the first k nodes of a tree are a tree."""

TARGET_IDS = np.arange(VOCAB, dtype=np.int32)


@dataclass(frozen=True)
class Trees:
    """Trees of one shape for the requests of a draft plan, each cut to what it may have."""

    plan: DraftPlan
    nodes: Nodes
    logits: Float32Array
    """[sum k, VOCAB]: the drafter's, for each of the plan's draft rows."""

    @property
    def wanted(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """[R, nodes]: the nodes of each request."""
        return np.arange(len(self.nodes)) < self.plan.k[:, None]

    @property
    def starts(self) -> Int32Array:
        """[R + 1]: nodes of each request."""
        return np.append(0, np.cumsum(self.wanted.sum(axis=1))).astype(np.int32)

    @property
    def parents(self) -> Int32Array:
        """[N]"""
        parents = np.array([parent for _, _, parent in self.nodes], np.int32)
        return np.broadcast_to(parents, self.wanted.shape)[self.wanted]

    def pick(self, ranked: Int32Array) -> Int32Array:
        """[N]: each node's token, of tokens [sum k, ranks] in order for each draft row."""
        depths = np.array([depth for depth, _, _ in self.nodes])
        ranks = np.array([rank for _, rank, _ in self.nodes])
        rows = self.plan.draft_start[:-1, None] + depths
        ranks = np.broadcast_to(ranks, self.wanted.shape)
        tokens: Int32Array = ranked[rows[self.wanted], ranks[self.wanted]]
        return tokens


Choose = Callable[[Trees], Drafts]


def greedy(trees: Trees) -> Drafts:
    """The likeliest tokens of each depth."""
    ranked = np.argsort(-trees.logits, axis=1, kind="stable").astype(np.int32)
    return Drafts(trees.plan.request_ids, trees.starts, trees.pick(ranked), trees.parents)


def coupled(trees: Trees) -> Drafts:
    """The first tokens of a race over the target's noise."""
    rows = np.arange(len(trees.logits), dtype=np.int32)
    _, tokens = coupled_candidates(trees.plan, rows, trees.logits, TARGET_IDS, 2, [1.0])
    return Drafts(
        trees.plan.request_ids, trees.starts, trees.pick(tokens), trees.parents, mode="coupled"
    )


def sampled(trees: Trees) -> Drafts:
    """Draws from the drafter's own noise, with the laws that drew them."""
    return _sampled(trees, 1.0)


def falsely_sampled(trees: Trees) -> Drafts:
    """A negative control: the laws that come along are flatter than those that drew."""
    return _sampled(trees, 0.5)


def _sampled(trees: Trees, exponent: float) -> Drafts:
    tokens, probs = sample_drafts(trees.plan, trees.logits, TARGET_IDS, trees.starts, trees.parents)
    told = probs**exponent
    return Drafts(
        trees.plan.request_ids,
        trees.starts,
        tokens,
        trees.parents,
        mode="sampled",
        draft_probs=told / told.sum(axis=1, keepdims=True) if exponent != 1.0 else probs,
        depth_starts=trees.plan.draft_start,
        target_ids=TARGET_IDS,
    )


CHOICES: dict[str, Choose] = {"greedy": greedy, "coupled": coupled, "sampled": sampled}
"""By the word of the engine's argument `drafts`."""


class Drafter:
    """Proposes trees of one shape over the laws of a table, in one way of choosing."""

    def __init__(self, laws: Float64Array, choose: Choose, shape: str) -> None:
        """
        Args:
            laws: [VOCAB, depths, VOCAB], as `depth_laws` makes them.
        """
        self._logits = np.log(laws).astype(np.float32)
        self._choose = choose
        self._nodes = SHAPES[shape]

    def propose(self, plan: DraftPlan, k: int) -> Drafts:
        """Drafts for the requests of a draft plan: k nodes, or as many as it asks for."""
        last = np.minimum(plan.last_token, VOCAB - 1).repeat(plan.k)
        depth = np.arange(len(last)) - plan.draft_start[:-1].repeat(plan.k)
        return self._choose(Trees(plan, self._nodes[:k], self._logits[last, depth]))


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
