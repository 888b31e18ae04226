"""The plain form of a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Chains:
    """One chain of drafts for each request."""

    request_ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, request_ids: npt.NDArray[np.int64], chains: Sequence[npt.NDArray[np.int32]]
    ) -> Chains:
        """Flattens one array of token ids for each request."""
        lengths = [len(chain) for chain in chains]
        inner = [np.arange(-1, length - 1, dtype=np.int32) for length in lengths]
        empty = np.zeros(0, np.int32)
        return cls(
            request_ids=request_ids,
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            token_ids=np.concatenate([empty, *chains]).astype(np.int32),
            parents=np.concatenate([empty, *inner]).astype(np.int32),
        )
