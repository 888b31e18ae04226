"""The binding of the core: what crosses the bridge, and that it arrives unharmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from peagle import _core, errors
from peagle.verify import verify

VOCAB = 97
SIZES = {
    "num_blocks": 64,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "num_speculative_tokens": 4,
}
PROMPT = np.array([5, 6, 7], dtype=np.int32)
Propose = Callable[[list[int], int], list[int]]


def make(**changes: int) -> _core.Scheduler:
    return _core.Scheduler(**(SIZES | changes))


def table_logits(history: list[int]) -> np.ndarray[Any, Any]:
    """The fake target: logits [VOCAB] that depend on the last two tokens."""
    seed = history[-1] * 131 + (history[-2] if len(history) > 1 else 0)
    return np.random.default_rng(seed).normal(0.0, 2.0, VOCAB).astype(np.float32)


class FakeRun:
    """Runs requests against the fake target, checking each plan against what was committed."""

    def __init__(self, scheduler: _core.Scheduler, propose: Propose | None) -> None:
        self.scheduler = scheduler
        self.propose = propose
        self.tokens: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.cache: dict[int, tuple[int, int]] = {}

    def add(self, request_id: int, prompt: list[int], **params: Any) -> None:
        array = np.array(prompt, dtype=np.int32)
        self.scheduler.add(request_id, array, **({"max_tokens": 12} | params))
        self.tokens[request_id] = list(prompt)
        self.outputs[request_id] = []

    def run(self) -> dict[int, list[int]]:
        drafts = None
        while self.scheduler.num_unfinished():
            plan = self.scheduler.schedule(drafts)
            verdicts = _core.verify(plan, self.forward(plan), "float32")
            drafts = self.take(self.scheduler.update(verdicts, None))
        assert self.scheduler.free_blocks() == self.scheduler.num_blocks
        return self.outputs

    def forward(self, plan: _core.Plan) -> np.ndarray[Any, Any]:
        """Logits of the wanted rows, from the tokens found by way of slots and parents."""
        block_size = SIZES["block_size"]
        rows = []
        for i, request_id in enumerate(plan.request_ids.tolist()):
            start, end = plan.query_start[i : i + 2]
            table = plan.block_tables[i]
            context = []
            for j in range(plan.context_lens[i]):
                token, position = self.cache[
                    int(table[j // block_size]) * block_size + j % block_size
                ]
                assert position == j
                context.append(token)
            paths: list[list[int]] = []
            for row in range(start, end):
                parent = int(plan.parents[row])
                path = (paths[parent] if parent >= 0 else context) + [int(plan.input_ids[row])]
                assert plan.positions[row] == len(path) - 1
                self.cache[int(plan.slots[row])] = (path[-1], len(path) - 1)
                paths.append(path)
            wanted = plan.logits_rows[plan.logits_start[i] : plan.logits_start[i + 1]]
            for row in wanted:
                path = paths[row - start]
                known = self.tokens[request_id]
                assert path[: len(known)] == known
                rows.append(table_logits(path))
        return np.stack(rows) if rows else np.zeros((0, VOCAB), dtype=np.float32)

    def take(self, output: _core.StepOutput) -> _core.Drafts | None:
        for source, target in zip(output.moves_src, output.moves_dst, strict=True):
            self.cache[int(target)] = self.cache[int(source)]
        for step in output.outputs:
            self.tokens[step.request_id] += step.token_ids
            self.outputs[step.request_id] += step.token_ids
            if step.finish_reason is not None:
                self.reasons[step.request_id] = step.finish_reason
        if self.propose is None:
            return None
        plan = output.draft
        ids, starts, tokens, parents = [], [0], [], []
        for request_id, k in zip(plan.request_ids.tolist(), plan.k.tolist(), strict=True):
            drafted = self.propose(self.tokens[request_id], k)[:k] if k else []
            ids.append(request_id)
            tokens += drafted
            parents += range(-1, len(drafted) - 1)
            starts.append(len(tokens))
        return _core.Drafts(
            np.array(ids, dtype=np.int64),
            np.array(starts, dtype=np.int32),
            np.array(tokens, dtype=np.int32),
            np.array(parents, dtype=np.int32),
        )


def perfect(tokens: list[int], k: int) -> list[int]:
    history = list(tokens)
    for _ in range(k):
        history.append(int(table_logits(history).argmax()))
    return history[len(tokens) :]


def wrong(tokens: list[int], k: int) -> list[int]:
    """Each draft is one more than the right one."""
    return [(token + 1) % VOCAB for token in perfect(tokens, k)]


def generate(propose: Propose | None, **sizes: int) -> tuple[dict[int, list[int]], dict[str, Any]]:
    scheduler = make(**sizes)
    run = FakeRun(scheduler, propose)
    for request_id in range(6):
        temperature = 0.0 if request_id % 2 else 0.9
        prompt = list(range(1, 4 + 3 * request_id))
        run.add(request_id, prompt, temperature=temperature, seed=request_id, top_k=20)
    return run.run(), scheduler.stats()


def test_text_does_not_depend_on_drafts_budget_or_memory() -> None:
    base, plain = generate(None)
    assert plain["windows"] == 0
    sizes: list[dict[str, int]] = [
        {},
        {"max_num_batched_tokens": 5},
        {"num_blocks": 10},
        {"max_num_seqs": 1, "num_speculative_tokens": 1},
    ]
    for propose in (perfect, wrong):
        for changes in sizes:
            outputs, stats = generate(propose, **changes)
            assert outputs == base
            assert stats["committed"] == sum(map(len, outputs.values()))
            assert stats["windows"] > 0
            by_position = stats["accepted_by_position"]
            assert by_position == sorted(by_position, reverse=True)
            if "num_blocks" in changes:
                assert stats["preemptions"] > 0


def test_greedy_drafts_are_all_accepted_or_all_refused() -> None:
    for propose, all_accepted in ((perfect, True), (wrong, False)):
        scheduler = make()
        run = FakeRun(scheduler, propose)
        run.add(1, [5, 6, 7], max_tokens=21)
        run.run()
        stats = scheduler.stats()
        assert stats["drafted"] > 0
        assert stats["accepted"] == (stats["drafted"] if all_accepted else 0)
        assert stats["committed"] == 21
        assert run.reasons == {1: "length"}


def test_plans_are_numpy_arrays() -> None:
    scheduler = make()
    scheduler.add(7, PROMPT, max_tokens=4)
    plan = scheduler.schedule()
    assert isinstance(plan, _core.Batch)
    assert plan.request_ids.dtype == np.int64
    for name in ("input_ids", "positions", "slots", "query_start", "context_lens", "parents"):
        assert getattr(plan, name).dtype == np.int32, name
    assert plan.input_ids.tolist() == [5, 6, 7]
    assert plan.positions.tolist() == [0, 1, 2]
    assert plan.slots.tolist() == [0, 1, 2]
    assert plan.parents.tolist() == [-1, 0, 1]
    assert plan.query_start.tolist() == [0, 3]
    assert plan.block_tables.tolist() == [[0]]
    assert plan.logits_rows.tolist() == [2]
    assert plan.logits_start.tolist() == [0, 1]
    assert plan.num_rows == 3
    assert plan.input_ids is plan.input_ids
    assert repr(plan) == "Plan(requests=1, rows=3)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_verify_reads_torch_tensors_of_each_dtype(dtype: torch.dtype, temperature: float) -> None:
    scheduler = make()
    scheduler.add(7, PROMPT, max_tokens=4, temperature=temperature, seed=3)
    plan = scheduler.schedule()
    logits = torch.from_numpy(table_logits([6, 7]))[None].to(dtype)
    verdicts = verify(plan, logits)
    same = _core.verify(plan, logits.float().numpy(), "float32")
    assert verdicts.token_ids.tolist() == same.token_ids.tolist()
    if temperature == 0.0:
        assert verdicts.token_ids.tolist() == [int(logits.float().argmax())]
    assert verdicts.request_ids.tolist() == [7]
    assert verdicts.starts.tolist() == [0, 1]
    assert verdicts.accepted.tolist() == [0]
    assert verdicts.errors == []


def test_verify_refuses_what_it_cannot_read() -> None:
    scheduler = make()
    scheduler.add(7, PROMPT, max_tokens=4)
    plan = scheduler.schedule()
    with pytest.raises(TypeError, match="float64"):
        verify(plan, torch.zeros(1, VOCAB, dtype=torch.float64))
    with pytest.raises(ValueError, match="contiguous"):
        verify(plan, torch.zeros(1, 2 * VOCAB)[:, ::2])
    with pytest.raises(ValueError, match="meta"):
        verify(plan, torch.zeros(1, VOCAB, device="meta"))
    with pytest.raises(errors.ShapeMismatchError, match="3 dimensions"):
        verify(plan, torch.zeros(1, 1, VOCAB))
    with pytest.raises(errors.ShapeMismatchError, match="rows is 2, expected 1"):
        verify(plan, torch.zeros(2, VOCAB))
    with pytest.raises(TypeError, match="uint16"):
        _core.verify(plan, np.zeros((1, VOCAB), dtype=np.float32), "bfloat16")
    with pytest.raises(ValueError, match="int8"):
        _core.verify(plan, np.zeros((1, VOCAB), dtype=np.float32), "int8")


def test_a_bad_row_is_an_error_of_its_request_alone() -> None:
    scheduler = make()
    for request_id in range(4):
        scheduler.add(request_id, PROMPT, max_tokens=4, temperature=float(request_id % 2))
    plan = scheduler.schedule()
    logits = np.tile(table_logits([6, 7]), (4, 1))
    logits[1, 50] = np.nan
    logits[2] = -np.inf
    verdicts = _core.verify(plan, logits, "float32")
    assert [request_id for request_id, _ in verdicts.errors] == [1, 2]
    assert "NaN" in verdicts.errors[0][1]
    assert verdicts.starts.tolist() == [0, 1, 1, 1, 2]
    output = scheduler.update(verdicts, None)
    reasons = {step.request_id: step.finish_reason for step in output.outputs}
    assert reasons == {0: None, 1: "error", 2: "error", 3: None}
    assert output.outputs[1].error is not None
    assert scheduler.num_unfinished() == 2


def test_cuts_end_requests_with_stop() -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=4)
    plan = scheduler.schedule()
    verdicts = _core.verify(plan, table_logits([6, 7])[None], "float32")
    with pytest.raises(errors.ShapeMismatchError):
        scheduler.update(verdicts, np.array([1, 1], dtype=np.int32))
    output = scheduler.update(verdicts, np.array([1], dtype=np.int32))
    (step,) = output.outputs
    assert (step.finish_reason, len(step.token_ids)) == ("stop", 1)
    assert step.error is None
    assert scheduler.num_unfinished() == 0


def test_the_draft_plan_catches_up_and_adds_mask_rows() -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=40)
    plan = scheduler.schedule()
    verdicts = _core.verify(plan, table_logits([6, 7])[None], "float32")
    draft = scheduler.update(verdicts, None).draft
    new = int(verdicts.token_ids[0])
    assert draft.request_ids.tolist() == [1]
    assert draft.k.tolist() == [4]
    assert draft.input_ids.tolist() == [6, 7, new, -1, -1, -1]
    assert draft.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert draft.slots.tolist() == [1, 2, 3, 4, 5, 6]
    assert draft.hidden_slots.tolist() == [0, 1, 2, -1, -1, -1]
    assert draft.context_lens.tolist() == [1]
    assert draft.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    assert draft.draft_rows.tolist() == [2, 3, 4, 5]
    assert draft.draft_start.tolist() == [0, 4]
    assert draft.last_token.tolist() == [new]


BAD_REQUESTS: list[tuple[type[errors.PeagleError], dict[str, Any]]] = [
    (errors.EmptyPromptError, {"prompt_token_ids": PROMPT[:0]}),
    (errors.InvalidTokenError, {"prompt_token_ids": -PROMPT}),
    (errors.PromptTooLongError, {"prompt_token_ids": np.ones(64, dtype=np.int32)}),
    (errors.InvalidMaxTokensError, {"max_tokens": 0}),
    (errors.InvalidMaxTokensError, {"max_tokens": -1}),
    (errors.InvalidTemperatureError, {"temperature": -0.1}),
    (errors.InvalidTemperatureError, {"temperature": float("nan")}),
    (errors.InvalidTemperatureError, {"temperature": float("inf")}),
    (errors.InvalidTopPError, {"top_p": 0.0}),
    (errors.InvalidTopPError, {"top_p": 1.1}),
    (errors.InvalidMinPError, {"min_p": -0.1}),
    (errors.InvalidTopKError, {"top_k": -1}),
    (errors.SpeculationCapError, {"num_speculative_tokens": 5}),
    (errors.SpeculationCapError, {"num_speculative_tokens": -1}),
    (errors.DuplicateRequestError, {"request_id": 1}),
]


@pytest.mark.parametrize(("error", "changes"), BAD_REQUESTS)
def test_bad_requests_are_refused_by_name(
    error: type[errors.PeagleError], changes: dict[str, Any]
) -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=4)
    request = {"request_id": 2, "prompt_token_ids": PROMPT, "max_tokens": 4} | changes
    with pytest.raises(error) as raised:
        scheduler.add(**request)
    assert scheduler.num_unfinished() == 1
    assert str(raised.value).startswith(f"request {request['request_id']} ")


def test_errors_carry_a_hint() -> None:
    scheduler = make(num_blocks=2)
    with pytest.raises(
        errors.KvCapacityError, match="needs up to 3 KV blocks, the pool has 2"
    ) as raised:
        scheduler.add(1, PROMPT, max_tokens=8)
    assert raised.value.hint == "raise num_kv_blocks or lower max_tokens"
    assert errors.PeagleError("x").hint is None
    with pytest.raises(errors.InvalidConfigError, match="block_size is 0") as refused:
        make(block_size=0)
    assert refused.value.hint is None


def test_every_core_error_is_exported() -> None:
    classes = {
        name
        for name in dir(_core)
        if isinstance(getattr(_core, name), type) and issubclass(getattr(_core, name), Exception)
    }
    assert classes <= set(errors.__all__)
    for name in classes:
        assert getattr(errors, name) is getattr(_core, name)
        assert getattr(_core, name).__module__ == "peagle.errors"


def drafts_for(request_id: int, tokens: list[int], parents: list[int]) -> _core.Drafts:
    return _core.Drafts(
        np.array([request_id], dtype=np.int64),
        np.array([0, len(tokens)], dtype=np.int32),
        np.array(tokens, dtype=np.int32),
        np.array(parents, dtype=np.int32),
    )


def test_drafts_are_checked_and_a_refusal_changes_nothing() -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=40)
    plan = scheduler.schedule()
    with pytest.raises(errors.StepOrderError, match="has not been updated"):
        scheduler.schedule()
    verdicts = _core.verify(plan, table_logits([6, 7])[None], "float32")
    scheduler.update(verdicts, None)
    with pytest.raises(errors.StepOrderError, match="no plan is in flight"):
        scheduler.update(verdicts, None)
    with pytest.raises(errors.UnknownRequestError):
        scheduler.schedule(drafts_for(2, [1], [-1]))
    with pytest.raises(errors.TooManyDraftsError):
        scheduler.schedule(drafts_for(1, [1, 2, 3, 4, 5], [-1, 0, 1, 2, 3]))
    with pytest.raises(errors.InvalidTreeError):
        scheduler.schedule(drafts_for(1, [1, 2], [-1, 1]))
    with pytest.raises(errors.InvalidTreeError):
        scheduler.schedule(drafts_for(1, [-1], [-1]))
    plan = scheduler.schedule(drafts_for(1, [1, 2, 3], [-1, -1, 0]))
    assert plan.input_ids.tolist()[1:] == [1, 2, 3]
    assert plan.positions.tolist() == [3, 4, 4, 5]
    assert plan.slots.tolist() == [3, 4, 5, 6]
    assert plan.parents.tolist() == [-1, 0, 0, 1]
    assert plan.logits_rows.tolist() == [0, 1, 2, 3]


def test_moves_make_an_accepted_path_contiguous() -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=40)
    verdicts = _core.verify(scheduler.schedule(), table_logits([6, 7])[None], "float32")
    scheduler.update(verdicts, None)
    history = PROMPT.tolist() + verdicts.token_ids.tolist()
    first, second = perfect(history, 2)
    other = (first + 1) % VOCAB
    plan = scheduler.schedule(drafts_for(1, [other, first, second], [-1, -1, 1]))
    paths = [history, [*history, other], [*history, first], [*history, first, second]]
    verdicts = _core.verify(plan, np.stack([table_logits(path) for path in paths]), "float32")
    assert verdicts.accepted.tolist() == [2]
    output = scheduler.update(verdicts, None)
    assert output.moves_src.tolist() == [5, 6]
    assert output.moves_dst.tolist() == [4, 5]
    (step,) = output.outputs
    assert (step.num_drafted, step.num_accepted) == (3, 2)


def test_abort_at_any_moment_returns_every_block() -> None:
    scheduler = make()
    scheduler.add(1, PROMPT, max_tokens=4)
    assert scheduler.abort(1)
    assert not scheduler.abort(1)
    scheduler.add(1, PROMPT, max_tokens=4)
    scheduler.add(2, PROMPT, max_tokens=4)
    plan = scheduler.schedule()
    assert scheduler.abort(1)
    verdicts = _core.verify(plan, np.tile(table_logits([6, 7]), (2, 1)), "float32")
    output = scheduler.update(verdicts, None)
    assert [step.request_id for step in output.outputs] == [2]
    assert scheduler.abort(2)
    assert scheduler.free_blocks() == scheduler.num_blocks == 64
    assert scheduler.schedule().num_rows == 0
