"""The draw in torch operators and the core's draw: one rule, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import peagle.engine
from peagle import _core
from peagle.errors import ShapeMismatchError
from peagle.llm import LLM, TokensPrompt
from peagle.params import SamplingParams
from peagle.verify import verify, verify_on_device
from tests.tiny import make_head, make_target

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def plan_of(requests: list[dict[str, Any]], prompt_lens: list[int] | None = None) -> _core.Plan:
    """A plan with one row of logits for each request."""
    count = len(requests)
    lens = prompt_lens or [1] * count
    scheduler = _core.Scheduler(
        num_blocks=count * 8,
        block_size=16,
        max_num_seqs=count,
        max_num_batched_tokens=sum(lens),
        max_model_len=64,
        num_speculative_tokens=4,
    )
    for index, (request, length) in enumerate(zip(requests, lens, strict=True)):
        scheduler.add(index, np.ones(length, np.int32), max_tokens=4, **request)
    return scheduler.schedule()


def assert_same(plan: _core.Plan, logits: torch.Tensor) -> int:
    """Equal verdicts, near ties aside; how many tokens differed."""
    core, device = verify(plan, logits), verify_on_device(plan, logits)
    assert core.request_ids.tolist() == device.request_ids.tolist()
    assert core.errors == device.errors
    assert core.starts.tolist() == device.starts.tolist()
    different = int((core.token_ids != device.token_ids).sum())
    assert different <= device.near_ties
    assert core.near_ties == device.near_ties
    return different


PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.5, 20.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 50, 10_000]),
        "top_p": st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(PARAMETERS, min_size=1, max_size=12),
    vocab=st.sampled_from([1, 2, 3, 64, 131, 1000]),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    rounding=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_tokens_equal_the_cores_for_all_parameters(
    requests: list[dict[str, Any]],
    vocab: int,
    dtype: torch.dtype,
    spread: float,
    rounding: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(0.0, spread, (len(requests), vocab))
    values = np.round(values) if rounding else values  # ties, also at zero of both signs
    values[rng.random(values.shape) < 0.1] = -np.inf
    values[:, 0] = np.where(np.isneginf(values).all(axis=1), 0.5, values[:, 0])
    plan = plan_of(requests, rng.integers(1, 20, len(requests)).tolist())
    assert_same(plan, torch.from_numpy(values).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tokens_equal_the_cores_on_a_large_vocabulary(dtype: torch.dtype) -> None:
    """Every combination of the filters, on and off, beside greedy rows."""
    requests = [
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        for temperature in (0.0, 0.7, 1.5)
        for top_k in (0, 50)
        for top_p in (1.0, 0.9)
        for min_p in (0.0, 0.01)
        for seed in (1, 2)
    ]
    logits = torch.randn(len(requests), 20_011, generator=torch.Generator().manual_seed(5)) * 3
    assert assert_same(plan_of(requests), logits.to(dtype)) == 0


def test_windows_are_walked_over_drawn_rows() -> None:
    """Trees, neighbours, and bad rows that lie on and off the accepted path."""
    rng = np.random.default_rng(0)
    scheduler = _core.Scheduler(
        num_blocks=256,
        block_size=4,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=64,
        num_speculative_tokens=5,
    )
    for index in range(16):
        scheduler.add(
            index, np.ones(3, np.int32), max_tokens=30, temperature=float(index % 3), seed=index
        )
    drafts, accepted, failed = None, 0, 0
    for _ in range(6):
        plan = scheduler.schedule(drafts)
        logits = torch.from_numpy(rng.normal(0, 1, (len(plan.logits_rows), 4)).astype(np.float32))
        if drafts is not None:
            logits[rng.integers(0, len(logits), 3), 0] = torch.tensor(
                [torch.nan, torch.inf, -torch.inf]
            )
            logits[rng.integers(0, len(logits))] = -torch.inf
        core, device = verify(plan, logits), verify_on_device(plan, logits)
        for name in ("request_ids", "starts", "token_ids", "accepted"):
            assert getattr(core, name).tolist() == getattr(device, name).tolist(), name
        assert core.errors == device.errors
        accepted += int(core.accepted.sum())
        failed += len(core.errors)
        asked = scheduler.update(device).draft
        trees = [[(0, -1), (1, -1), (2, 0), (3, 2), (0, 1)][:k] for k in asked.k.tolist()]
        nodes = np.array([n for tree in trees for n in tree], np.int32).reshape(-1, 2)
        drafts = _core.Drafts(
            asked.request_ids,
            np.cumsum([0, *map(len, trees)]).astype(np.int32),
            np.ascontiguousarray(nodes[:, 0]),
            np.ascontiguousarray(nodes[:, 1]),
        )
    assert accepted > 20
    assert failed > 2


def test_an_engine_that_draws_on_the_device_writes_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_target(tmp_path / "target")
    make_head(tmp_path / "head")
    llm = LLM(
        tmp_path / "target", head=tmp_path / "head", dtype="float32", num_speculative_tokens=4
    )
    prompts = [TokensPrompt(prompt_token_ids=[1, 2, 3 + i]) for i in range(4)]

    def texts(temperature: float) -> list[list[int]]:
        params = SamplingParams(max_tokens=20, temperature=temperature, top_p=0.9, seed=3)
        return [output.token_ids for output in llm.generate(prompts, params)]

    core = texts(0.0), texts(0.9)
    monkeypatch.setattr(peagle.engine, "verify", verify_on_device)
    assert (texts(0.0), texts(0.9)) == core


def test_another_number_of_rows_is_refused() -> None:
    plan = plan_of([{"temperature": 1.0}] * 3)
    with pytest.raises(ShapeMismatchError, match="rows is 2, expected 3"):
        verify_on_device(plan, torch.zeros(2, 7))
    tokens, flags = np.zeros(2, np.int32), np.zeros(2, np.bool_)
    with pytest.raises(ShapeMismatchError, match="rows is 2, expected 3"):
        _core.verify_drawn_rows(plan, tokens, flags, np.zeros(2, np.uint8))
    with pytest.raises(ShapeMismatchError, match="near_ties is 1, expected 2"):
        _core.verify_drawn_rows(plan, tokens, flags[:1], np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="error code is 4"):
        _core.verify_drawn_rows(plan, tokens, flags, np.full(2, 4, np.uint8))


@pytest.mark.parametrize(
    "request_parameters", [{"presence_penalty": 1.0}, {"logprobs": 2}, {"logit_bias": [(3, 1.0)]}]
)
def test_draws_alone_are_refused_where_rows_are_processed_or_reported(
    request_parameters: dict[str, Any],
) -> None:
    plan = plan_of([{}, request_parameters])
    assert plan.needs_logits
    assert not plan_of([{}, {"temperature": 1.0}]).needs_logits
    with pytest.raises(ValueError, match="needs its logits"):
        verify_on_device(plan, torch.zeros(2, 7))
