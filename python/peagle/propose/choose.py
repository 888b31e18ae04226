"""How drafts are chosen from the head's logits, and which ways verification can take.

| drafts | rule | verification |
| --- | --- | --- |
| `greedy` | the likeliest tokens | coupled |
| `coupled` | the drafter races its own law over the target's noise | coupled |
| `sampled` | draws from noise of the drafter's own; its float32 laws travel along | any |

Requests at temperature 0 get the likeliest tokens in any case. Greedy and coupled drafts use the
head's transition table. Sampled ones do not: all nodes of a depth are drawn from one law, the only
one that verification is told.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from peagle._core import sample_drafts
from peagle.errors import ConfigError
from peagle.propose.drafts import DraftLaws
from peagle.propose.tree import fixed_shape

if TYPE_CHECKING:
    from peagle._core import DraftPlan

Node = tuple[int, int]
"""Token id and parent."""

SIBLINGS = {"tree": 8, "chain": 1}
"""Candidates of a depth, by the shape of the drafts."""

DRAFTS = ("greedy", "coupled", "sampled")
VERIFICATIONS = ("coupled", "rejection", "block")


def check_drafting(verification: str, drafts: str | None, shape: str | None) -> tuple[str, str]:
    """Fills in and checks how drafts are chosen and shaped.

    Args:
        verification: `coupled`, `rejection` or `block`.
        drafts: `greedy`, `coupled` or `sampled`; `None` is `coupled` where verification can take
            it, else `sampled`.
        shape: `tree` or `chain`; `None` is a tree where verification can take one.

    Returns:
        Drafts and shape.

    Raises:
        ConfigError: an unknown word, or a pair that would bias the text or cannot work; the message
            says why.
    """
    check_word("verification", verification, VERIFICATIONS)
    coupled = verification == "coupled"
    drafts = ("coupled" if coupled else "sampled") if drafts is None else drafts
    shape = ("chain" if verification == "block" else "tree") if shape is None else shape
    check_word("drafts", drafts, DRAFTS)
    check_word("draft_shape", shape, tuple(SIBLINGS))
    if not coupled and drafts != "sampled":
        reason = {
            "greedy": "the likeliest token was not drawn from the drafter's law",
            "coupled": "drafts that share the target's noise would bias the text",
        }[drafts]
        raise ConfigError(
            f"verification is {verification!r} and drafts is {drafts!r}: {reason}",
            hint="use drafts='sampled', or verification='coupled', which takes any drafts",
        )
    if verification == "block" and shape != "chain":
        raise ConfigError(
            "verification is 'block' and draft_shape is 'tree', expected 'chain'",
            hint="block verification takes chains only; "
            "use draft_shape='chain', or verification='rejection'",
        )
    return drafts, shape


def check_word(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless `value` is one of the known words."""
    if value not in known:
        raise ConfigError(f"{name} is {value!r}, expected {' or '.join(known)}")


def sampled_trees(
    plan: DraftPlan,
    logits: npt.NDArray[np.float32],
    target_ids: npt.NDArray[np.int32],
    width: int,
) -> tuple[list[list[Node]], DraftLaws]:
    """A tree for each request above temperature 0, of a shape that depends on k alone.

    Args:
        logits: [sum k, draft_vocab_size] of the plan's draft rows.
        target_ids: [draft_vocab_size]
        width: most siblings.

    Returns:
        (token id, parent) pairs, none at temperature 0 and where the head's logits hold a NaN; and
        the laws that drew them.
    """
    width = min(width, len(target_ids))
    k = np.where(plan.temperature > 0.0, plan.k, 0)
    shapes = [fixed_shape(count, width) for count in k.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(s) for s in shapes])]).astype(np.int32)
    parents = np.array([parent for shape in shapes for parent in shape], np.int32)
    token_ids, probs = sample_drafts(plan, logits, target_ids, starts, parents)
    trees: list[list[Node]] = []
    for shape, (start, end) in zip(shapes, pairwise(starts.tolist()), strict=True):
        drawn = token_ids[start:end].tolist()
        trees.append(list(zip(drawn, shape, strict=True)) if min(drawn, default=-1) >= 0 else [])
    return trees, DraftLaws(probs, plan.draft_start, target_ids)
