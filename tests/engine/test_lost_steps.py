"""Whatever raises in a step: committed tokens reach their callers, the next step can be made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle import LLM, SamplingParams
from peagle.errors import GenerationError, PeagleError
from peagle.llm import TokensPrompt
from peagle.propose.drafts import TokenTrees
from tests.engine.scripted import ScriptedProposer, install
from tests.tiny import VOCAB, random_ids

PARAMS = SamplingParams(max_tokens=20)
MINE, OTHER = random_ids(9), random_ids(7, seed=3)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """What each prompt gives without speculation."""
    llm = LLM(folder / "target", dtype="float32", max_model_len=128)
    return {tuple(ids): generate(llm, ids) for ids in (MINE, OTHER)}


@pytest.fixture
def llm(folder: Path) -> LLM:
    """A fresh engine with the head."""
    head = folder / "head"
    return LLM(folder / "target", head=head, dtype="float32", max_model_len=128)


def generate(llm: LLM, ids: list[int]) -> list[int]:
    """One request alone."""
    return llm.generate(TokensPrompt(prompt_token_ids=ids), PARAMS)[0].token_ids


def rest(stream: Any) -> Any:
    """The output of a stream that is read to its end."""
    *_, (_, last) = stream
    return last


def fail(owner: Any, name: str, error: BaseException, call: int, *, after: bool = False) -> None:
    """Makes the n-th call of a method raise, before or after it did its work."""
    method, calls = getattr(owner, name), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != call:
            return method(*arguments)
        if after:
            method(*arguments)
        raise error

    setattr(owner, name, failing)


def engine(llm: LLM) -> Any:
    return llm.engine


PARTS: dict[str, Callable[[LLM], tuple[Any, str]]] = {
    "propose": lambda llm: (engine(llm).proposer, "propose"),
    "observe": lambda llm: (engine(llm).proposer, "observe"),
    "forward": lambda llm: (engine(llm).runner, "forward"),
}


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_part_that_raises_once_costs_the_neighbours_nothing(
    llm: LLM,
    expected: dict[tuple[int, ...], list[int]],
    part: str,
    error: BaseException,
    after: bool,
    call: int,
) -> None:
    other = llm.stream(OTHER, PARAMS)
    next(other)
    owner, name = PARTS[part](llm)
    fail(owner, name, error, call, after=after)
    with pytest.raises(type(error)):
        generate(llm, MINE)
    assert generate(llm, MINE) == expected[tuple(MINE)]
    assert rest(other).token_ids == expected[tuple(OTHER)]
    assert llm.engine.scheduler.num_unfinished() == 0


def test_a_proposer_that_raises_once_costs_its_own_request_nothing(
    llm: LLM, expected: dict[tuple[int, ...], list[int]]
) -> None:
    fail(engine(llm).proposer, "propose", RuntimeError("out of memory"), 3)
    add(llm, 7, MINE)
    found: list[int] = []
    failures = 0
    while llm.engine.scheduler.num_unfinished():
        try:
            updates = llm.engine.step()
        except RuntimeError:
            failures += 1
        else:
            found += [token for u in updates for token in u.token_ids]
    assert failures == 1
    assert found == expected[tuple(MINE)]


def add(llm: LLM, request_id: int, ids: list[int]) -> None:
    """Queues a request below the `LLM`."""
    llm.engine.add(request_id, ids, PARAMS, eos_token_ids=())


def test_a_proposer_that_always_raises_still_lets_requests_end(
    llm: LLM, expected: dict[tuple[int, ...], list[int]]
) -> None:
    def broken(plan: Any) -> Any:
        raise RuntimeError("always")

    engine(llm).proposer.propose = broken
    add(llm, 7, MINE)
    found: list[int] = []
    while llm.engine.scheduler.num_unfinished():
        try:
            found += [token for u in llm.engine.step() for token in u.token_ids]
        except RuntimeError:
            continue
    assert found == expected[tuple(MINE)]


def trees(**changes: Any) -> Callable[[Any], Any]:
    """Drafts of one node for each request, with something wrong."""

    def propose(plan: Any) -> Any:
        count = len(plan.request_ids)
        good = {
            "request_ids": plan.request_ids,
            "starts": np.arange(count + 1, dtype=np.int32),
            "token_ids": np.full(count, 3, np.int32),
            "parents": np.full(count, -1, np.int32),
        }
        return TokenTrees(**(good | changes))

    return propose


@pytest.mark.parametrize(
    "changes",
    [
        {"request_ids": np.array([99], np.int64)},
        {"starts": np.array([0, 5], np.int32)},
        {"starts": np.zeros(0, np.int32)},
        {"parents": np.array([4], np.int32)},
        {"parents": np.zeros(0, np.int32)},
        {
            "starts": np.array([0, 9], np.int32),
            "token_ids": np.arange(9, dtype=np.int32),
            "parents": np.arange(-1, 8, dtype=np.int32),
        },
    ],
    ids=["unknown request", "long starts", "no starts", "parent", "no parents", "too many"],
)
def test_malformed_drafts_fail_one_step_only(
    llm: LLM, expected: dict[tuple[int, ...], list[int]], changes: dict[str, Any]
) -> None:
    proposer = engine(llm).proposer
    good, calls = proposer.propose, []

    def malformed_once(plan: Any) -> Any:
        calls.append(plan)
        return trees(**changes)(plan) if len(calls) == 2 else good(plan)

    proposer.propose = malformed_once
    other = llm.stream(OTHER, PARAMS)
    next(other)
    with pytest.raises(PeagleError):
        rest(other)
    assert generate(llm, MINE) == expected[tuple(MINE)]
    assert len(calls) > 2


def test_a_listener_that_raises_costs_the_neighbours_nothing(
    llm: LLM, expected: dict[tuple[int, ...], list[int]]
) -> None:
    def listener(updates: Any) -> None:
        raise RuntimeError("full")

    other = llm.stream(OTHER, PARAMS)
    next(other)
    with pytest.raises(RuntimeError):
        llm.generate(TokensPrompt(prompt_token_ids=MINE), PARAMS, on_step=listener)
    assert rest(other).token_ids == expected[tuple(OTHER)]


@pytest.mark.parametrize("error", [RuntimeError("device"), KeyboardInterrupt()], ids=repr)
def test_a_failed_move_ends_those_that_moved_and_keeps_their_tokens(
    folder: Path, expected: dict[tuple[int, ...], list[int]], error: BaseException
) -> None:
    llm = LLM(folder / "target", head=folder / "head", dtype="float32", max_model_len=128)
    texts = {0: OTHER + expected[tuple(OTHER)]}  # others have no drafts: their KV never moves
    script = ScriptedProposer("tree", lambda i, n: texts[i][n:] if i in texts else [], VOCAB)
    install(llm, script)
    other, mine = llm.stream(OTHER, PARAMS), llm.stream(MINE, PARAMS)
    _, first = next(other)
    next(mine)
    move = engine(llm).runner.move

    def failing(src: Any, dst: Any) -> None:
        if len(src):
            raise error
        move(src, dst)

    engine(llm).runner.move = failing
    with pytest.raises(type(error)):
        rest(mine)
    engine(llm).runner.move = move
    with pytest.raises(GenerationError, match="moving its KV failed"):
        rest(other)
    assert first.finish_reason == "error"
    length = len(first.token_ids)
    assert length > 1
    assert first.token_ids == expected[tuple(OTHER)][:length]
    assert first.outputs[0].num_accepted > 0
    assert generate(llm, MINE) == expected[tuple(MINE)]
    assert llm.engine.scheduler.num_unfinished() == 0
