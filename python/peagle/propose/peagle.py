"""The P-EAGLE proposer: drafter KV and stored hidden states, indexed by the target's slots."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from peagle.heads.peagle import PEagleHead
from peagle.kv_cache import KvCache
from peagle.models.batch import Batch
from peagle.propose.candidates import DrafterPass, by_coupled_race, by_likelihood
from peagle.propose.choose import SIBLINGS, Node, sampled_trees
from peagle.propose.drafts import DraftLaws, TokenTrees
from peagle.propose.tree import grow

if TYPE_CHECKING:
    from peagle._core import DraftPlan


class PEagleProposer:
    """Drafts K tokens in one pass of a P-EAGLE head.

    The drafter's row of token t_j reads the hidden state h_{j-1} and lies in slot(j), so a slot
    depends on tokens 0..j only. `fc`'s output of h_j is kept at slot(j): the drafter can catch up
    from it at any time.
    """

    def __init__(
        self, head: PEagleHead, cache: KvCache, *, shape: str = "tree", drafts: str = "greedy"
    ) -> None:
        """
        Args:
            head: makes the drafts.
            cache: the target's; the drafter's KV has its blocks.
            shape: `chain` for one token at each depth, `tree` for the same number of nodes where
                the head expects most of them.
            drafts: how tokens are chosen above temperature 0, as in `peagle.propose.choose`.
        """
        self.head = head
        self._drafts = drafts
        self.taps = head.taps
        self.invalid_windows = 0
        """Windows without drafts because the head's logits held a NaN."""
        self._width = SIBLINGS[shape]
        self._block_size = cache.block_size
        self._layers = head.new_cache(cache.num_blocks, cache.block_size)
        self._hidden = head.backend.zeros(cache.num_slots, head.config.hidden_size)

    def observe(self, batch: Batch, aux: Any) -> None:
        """Keeps `fc`'s output of the target's taps by slot."""
        self.head.backend.put_(batch.slots, self.head.project(aux), self._hidden)

    def move(self, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]) -> None:
        """Moves stored hidden states; the drafter's KV never holds tree nodes."""
        backend = self.head.backend
        for source, target in zip(src, dst, strict=True):
            value = backend.take(self._hidden, source[None])
            backend.put_(target[None], value, self._hidden)

    def propose(self, plan: DraftPlan) -> TokenTrees:
        """One pass: catch-up rows, the newest token, and K - 1 mask rows for each request."""
        logits = self._forward(plan)
        if self._drafts == "sampled" and plan.temperature.any():
            trees, laws = self._sampled(plan, logits)
        else:
            trees, laws = self._grown(plan, logits), None
        drafts = TokenTrees.of(plan.request_ids, trees, mode=self._drafts, laws=laws)
        empty = np.diff(drafts.starts) == 0
        self.invalid_windows += int((empty & (plan.k > 0)).sum())
        return drafts

    def _grown(self, plan: DraftPlan, logits: Any) -> list[list[Node]]:
        """Best-first trees of each request, of the likeliest or of raced tokens."""
        if self._drafts == "coupled" and plan.temperature.any():
            rank = by_coupled_race(self.head, self._width, plan)
        else:
            rank = by_likelihood(self.head, self._width)
        drafted = DrafterPass.of(self.head, logits, rank)
        trees = []
        for start, end in pairwise(plan.draft_start.tolist()):
            k = 0 if np.isnan(drafted.log_probs[start:end]).any() else end - start
            nodes = grow(partial(drafted.behind, start), k, k)
            trees.append([(int(self.head.target_ids[i]), parent) for i, parent in nodes])
        return trees

    def _sampled(self, plan: DraftPlan, logits: Any) -> tuple[list[list[Node]], DraftLaws]:
        """Sampled trees, and at temperature 0 the likeliest."""
        rows = self.head.backend.tensor(logits).float().cpu().numpy()
        sampled, laws = sampled_trees(plan, rows, self.head.target_ids, self._width)
        warm = plan.temperature > 0.0
        if warm.all():
            return sampled, laws
        grown = self._grown(plan, logits)
        return [s if w else g for w, s, g in zip(warm, sampled, grown, strict=True)], laws

    def _forward(self, plan: DraftPlan) -> Any:
        head, backend = self.head, self.head.backend
        masked = np.flatnonzero(plan.hidden_slots < 0).astype(np.int32)
        token_ids = np.where(plan.hidden_slots < 0, head.config.mask_token_id, plan.input_ids)
        batch = replace(Batch.of(plan), input_ids=token_ids.astype(np.int32))
        hidden = backend.take(self._hidden, np.maximum(plan.hidden_slots, 0))
        backend.put_(masked, head.mask_hidden, hidden)
        return head.forward(batch, hidden, self._layers, self._block_size, plan.draft_rows)
