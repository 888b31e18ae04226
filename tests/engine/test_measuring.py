"""What is counted: acceptance by position, times between tokens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from peagle import LLM, SamplingParams
from peagle.acceptance import Acceptance
from peagle.bench import Recorder, run_bench
from peagle.engine import RequestUpdate
from peagle.llm import TokensPrompt
from tests.engine.scripted import draft_from_texts
from tests.tiny import random_ids

PROMPTS = [random_ids(5, seed=1), random_ids(11, seed=2)]
NEW_TOKENS = 16


def make_llm(folder: Path, kind: str) -> LLM:
    """An engine whose drafts follow a script, or come from the random head."""
    llm = LLM(
        folder / "target",
        head=folder / "head",
        dtype="float32",
        max_model_len=128,
        num_speculative_tokens=6,
    )
    if kind == "head":
        return llm
    params = SamplingParams(max_tokens=NEW_TOKENS, num_speculative_tokens=0)
    texts = [
        ids + llm.generate(TokensPrompt(prompt_token_ids=ids), params)[0].token_ids
        for ids in PROMPTS
    ]
    draft_from_texts(llm, kind, texts)
    return llm


@pytest.mark.parametrize("kind", ["perfect", "alternating", "wrong", "empty", "head"])
@pytest.mark.parametrize("ks", [[0, 2, 4, 6], [6, 1, 0, 5, 2]], ids=str)
def test_a_result_has_one_share_for_each_of_its_drafts(
    folder: Path, kind: str, ks: list[int]
) -> None:
    llm = make_llm(folder, kind)
    params = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    results = run_bench(llm, PROMPTS, ks, params, rounds=2)
    assert [r.k for r in results] == ks
    for result in results:
        shares = result.accept_by_position
        assert len(shares) == result.k
        assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(shares))
        if kind == "perfect" and result.k:
            assert shares[0] == 1.0
        if result.acceptance_length is not None:
            assert result.acceptance_length == pytest.approx(1 + sum(shares))
        else:
            assert not any(shares)


@pytest.mark.parametrize("counts", [[], [3], [3, 2, 1, 1, 1]])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_counters_are_padded_and_cut_to_k(counts: list[int], k: int) -> None:
    found = Acceptance.of({"windows": 4, "accepted_by_position": counts}, k)
    assert list(found.accepted_by_position) == (counts + [0] * k)[:k]
    assert (found - found).accept_by_position == [0.0] * k


def update(request_id: int, tokens: int, error: str | None = None) -> RequestUpdate:
    """What a step did."""
    return RequestUpdate(request_id, [1] * tokens, error and "error", error, 0, 0)


def test_a_request_that_ends_without_tokens_has_no_time_between_tokens() -> None:
    recorder = Recorder()
    recorder([update(1, 1), update(2, 1), update(3, 0, "nan")])
    recorder([update(1, 3), update(2, 0, "nan")])
    recorder([update(1, 0, "nan")])
    assert len(recorder.first_token) == 2
    assert len(recorder.inter_token) == 3
    assert len(recorder.steps) == 1
