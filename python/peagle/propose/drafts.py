"""The plain form of a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DraftLaws:
    """The laws that sampled drafts were drawn from."""

    probs: npt.NDArray[np.float32]
    """[depths of all requests, draft_vocab_size]"""
    starts: npt.NDArray[np.int32]
    """[R + 1]: rows of each request"""
    target_ids: npt.NDArray[np.int32]
    """[draft_vocab_size] target token id of each draft token id, increasing"""


@dataclass(frozen=True)
class TokenTrees:
    """One token tree for each request, flat."""

    request_ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    mode: str = "greedy"
    """How they were chosen above temperature 0: greedy, coupled or sampled."""
    laws: DraftLaws | None = None
    """What sampled ones were drawn from."""

    @classmethod
    def of(
        cls,
        request_ids: npt.NDArray[np.int64],
        trees: Sequence[Sequence[tuple[int, int]]],
        *,
        mode: str = "greedy",
        laws: DraftLaws | None = None,
    ) -> TokenTrees:
        """Flattens the (token id, parent) pairs of each request, parents first; a chain has the
        parents -1, 0, 1, ...
        """
        nodes = np.array([node for tree in trees for node in tree], np.int32).reshape(-1, 2)
        return cls(
            request_ids=request_ids,
            starts=np.concatenate([[0], np.cumsum([len(t) for t in trees])]).astype(np.int32),
            token_ids=np.ascontiguousarray(nodes[:, 0]),
            parents=np.ascontiguousarray(nodes[:, 1]),
            mode=mode,
            laws=laws,
        )


def to_target_ids(
    draft_ids: npt.NDArray[np.int64], target_ids: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """A chain of draft ids as target ids; none at all if the head's logits held a NaN (-1)."""
    return target_ids[draft_ids[:0] if (draft_ids < 0).any() else draft_ids]
