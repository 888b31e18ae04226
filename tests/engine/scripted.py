"""Drafters with a script, for tests that ask what any drafter may do to the output: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peagle import LLM
from peagle.propose.drafts import TokenTrees

Continuation = Callable[[int, int], list[int]]
"""(request id, number of committed tokens) -> the tokens that the target will commit next."""


class ScriptedProposer:
    """Drafts from a script that may know the right answer.

    Kinds: `perfect`, `wrong` (never right), `alternating` (right, wrong, right, ...), `empty`,
    `first_wrong`, and `tree` (the right path and wrong siblings).
    """

    taps: tuple[int, ...] = ()

    def __init__(self, kind: str, continuation: Continuation, vocab: int) -> None:
        self._kind = kind
        self._continuation = continuation
        self._vocab = vocab
        self._committed: dict[int, int] = {}

    def observe(self, batch: Any, aux: Any) -> None:
        """Needs nothing."""

    def move(self, src: Any, dst: Any) -> None:
        """Keeps nothing."""

    def propose(self, plan: Any) -> Any:
        """Drafts by script."""
        ends = plan.query_start[1:]
        trees = []
        for i, request_id in enumerate(plan.request_ids.tolist()):
            k = int(plan.k[i])
            # Mask rows follow the newest committed token's row, which is row n - 1.
            committed = int(plan.context_lens[i]) + int(ends[i] - plan.query_start[i]) - (k - 1)
            right = self._continuation(request_id, committed)[:k] if k else []
            trees.append(list(zip(*self._nodes(right, k), strict=True)))
        return TokenTrees.of(plan.request_ids, trees)

    def _nodes(self, right: list[int], k: int) -> tuple[list[int], list[int]]:
        wrong = [(t + 1) % self._vocab for t in right]
        if self._kind == "empty" or not right:
            return [], []
        if self._kind == "tree":
            tokens, parents, above = [], [], -1
            for good, bad in zip(right, wrong, strict=True):
                if len(tokens) + 2 > k:
                    break
                tokens += [bad, good]
                parents += [above, above]
                above = len(tokens) - 1
            return tokens, parents
        chosen = {
            "perfect": right,
            "wrong": wrong,
            "alternating": [
                r if i % 2 == 0 else w for i, (r, w) in enumerate(zip(right, wrong, strict=True))
            ],
            "first_wrong": wrong[:1] + right[1:],
        }[self._kind]
        return chosen, list(range(-1, len(chosen) - 1))


def install(llm: LLM, proposer: ScriptedProposer) -> None:
    """Makes an engine with a head draft by a script instead."""
    llm.engine.proposer = proposer
    llm.engine.runner._proposer = proposer
    llm.engine.runner._taps = ()


def draft_from_texts(llm: LLM, kind: str, texts: list[list[int]]) -> None:
    """Makes an engine draft what follows in the first of the texts that begins as the request does.

    Args:
        llm: an engine with a head.
        kind: see `ScriptedProposer`.
        texts: prompt and output; may grow later.
    """

    def continuation(request_id: int, committed: int) -> list[int]:
        if request_id not in llm._requests:  # aborted since its drafts were asked for
            return []
        output = llm._requests[request_id].output
        begun = output.prompt_token_ids + output.token_ids
        fitting = (text for text in texts if text[: len(begun)] == begun)
        return next(fitting, [])[committed:]

    install(llm, ScriptedProposer(kind, continuation, llm.target.config.vocab_size))
