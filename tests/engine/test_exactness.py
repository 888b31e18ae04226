"""Whatever drafts, batches, chunks and pools do: every request gets the tokens it gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from peagle.engine import Engine
from peagle.llm import TokensPrompt
from tests.engine.scripted import draft_from_texts
from tests.tiny import random_ids

KINDS = ["perfect", "wrong", "alternating", "empty", "first_wrong", "tree"]
PROMPT_LENGTHS = [1, 2, 7, 16, 17, 33, 40]
NEW_TOKENS = 40


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def plain(request: pytest.FixtureRequest, folder: Path) -> LLM:
    """The engine without a head."""
    return LLM(folder / "target", dtype=request.param, max_model_len=256, max_num_seqs=1)


def prompts() -> list[TokensPrompt]:
    """Prompts around the block size."""
    return [TokensPrompt(prompt_token_ids=random_ids(n, seed=n)) for n in PROMPT_LENGTHS]


def params(temperature: float, **changes: Any) -> SamplingParams:
    """Settings of a run; seeded when sampled."""
    settings = {"max_tokens": NEW_TOKENS, "temperature": temperature, "seed": 11}
    return SamplingParams(**(settings | changes))


def alone(plain: LLM, temperature: float) -> list[list[int]]:
    """Each request by itself, without speculation."""
    return [plain.generate(p, params(temperature))[0].token_ids for p in prompts()]


def scripted(plain: LLM, folder: Path, kind: str, truth: list[list[int]], **settings: Any) -> LLM:
    """An engine whose drafter follows a script."""
    dtype = "bfloat16" if plain.target.backend.dtype.itemsize == 2 else "float32"
    llm = LLM(folder / "target", head=folder / "head", dtype=dtype, max_model_len=256, **settings)
    texts = [list(p["prompt_token_ids"]) + t for p, t in zip(prompts(), truth, strict=True)]
    draft_from_texts(llm, kind, texts)
    return llm


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_never_change_the_tokens(
    plain: LLM, folder: Path, kind: str, k: int, temperature: float
) -> None:
    truth = alone(plain, temperature)
    llm = scripted(plain, folder, kind, truth, num_speculative_tokens=k, max_num_seqs=3)
    found = [o.token_ids for o in llm.generate(prompts(), params(temperature))]
    assert found == truth
    stats = llm.engine.scheduler.stats()
    if kind == "perfect":
        assert stats["accepted"] == stats["drafted"] > 0
    if kind in ("wrong", "first_wrong"):
        assert stats["accepted"] == 0 < stats["drafted"]
    assert stats["committed"] == sum(map(len, found))
    assert stats["free_blocks"] == llm.engine.scheduler.num_blocks


@pytest.mark.parametrize("k", [1, 3, 8])
def test_one_token_over_and_over_is_no_near_tie(plain: LLM, folder: Path, k: int) -> None:
    """B12: a window of K + 1 rows and a row alone have the same argmax, in bfloat16 too.

    https://github.com/vllm-project/vllm/issues/41758
    """
    prompt = TokensPrompt(prompt_token_ids=[17] * 48)
    greedy = params(0.0, max_tokens=100)
    truth = plain.generate(prompt, greedy)[0].token_ids
    llm = head_llm(plain, folder, num_speculative_tokens=k)
    draft_from_texts(llm, "perfect", [[17] * 48 + truth])
    assert llm.generate(prompt, greedy)[0].token_ids == truth
    assert llm.engine.scheduler.stats()["accepted"] >= 49


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.5])
@pytest.mark.parametrize("k", range(1, 9))
def test_a_head_never_changes_the_tokens(
    plain: LLM, folder: Path, k: int, temperature: float
) -> None:
    truth = alone(plain, temperature)
    llm = head_llm(plain, folder, num_speculative_tokens=k)
    assert [o.token_ids for o in llm.generate(prompts(), params(temperature))] == truth


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"num_kv_blocks": 12, "max_num_seqs": 7},
        {"num_kv_blocks": 9, "max_num_seqs": 4, "max_num_batched_tokens": 33},
        {"block_size": 32, "num_kv_blocks": 9},
    ],
    ids=["small chunks", "tiny chunks", "preemption", "preemption and chunks", "large blocks"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chunks_and_preemption_never_change_the_tokens(
    plain: LLM, folder: Path, settings: dict[str, int], temperature: float
) -> None:
    truth = alone(plain, temperature)
    llm = head_llm(plain, folder, num_speculative_tokens=4, **settings)
    assert [o.token_ids for o in llm.generate(prompts(), params(temperature))] == truth
    if "num_kv_blocks" in settings and settings.get("block_size", 16) == 16:
        assert llm.engine.scheduler.stats()["preemptions"] > 0


def head_llm(plain: LLM, folder: Path, **settings: Any) -> LLM:
    """An engine with the random head."""
    dtype = "bfloat16" if plain.target.backend.dtype.itemsize == 2 else "float32"
    return LLM(folder / "target", head=folder / "head", dtype=dtype, max_model_len=256, **settings)


def test_live_drafts_equal_drafts_from_scratch(folder: Path) -> None:
    """Chunks, partial acceptance and neighbours do not change what the cached path drafts."""
    llm = LLM(
        folder / "target",
        head=folder / "head",
        dtype="float32",
        max_model_len=256,
        num_speculative_tokens=5,
        draft_shape="chain",
        max_num_batched_tokens=24,
        num_kv_blocks=14,
    )
    checked = 0
    for plan, chains, committed in record_drafts(llm.engine):
        for i, request_id in enumerate(plan.request_ids.tolist()):
            drafts = chains.token_ids[chains.starts[i] : chains.starts[i + 1]].tolist()
            if drafts:
                checked += 1
                tokens = committed[request_id]
                assert drafts == llm.propose(tokens, len(drafts))
                assert drafts[:2] == llm.propose(tokens, 7)[: min(2, len(drafts))]
    assert checked > 100


def record_drafts(engine: Engine) -> Iterator[tuple[Any, Any, dict[int, list[int]]]]:
    """Generates for all prompts and yields each draft plan with what was proposed and the tokens
    that were committed then.
    """
    seen: list[tuple[Any, Any, dict[int, list[int]]]] = []
    committed: dict[int, list[int]] = {}
    propose = engine.proposer.propose  # type: ignore[union-attr]

    def watched(plan: Any) -> Any:
        chains = propose(plan)
        seen.append((plan, chains, {i: list(tokens) for i, tokens in committed.items()}))
        return chains

    engine.proposer.propose = watched  # type: ignore[union-attr,method-assign]
    scheduler = engine.scheduler
    for i, prompt in enumerate(prompts()):
        committed[i] = list(prompt["prompt_token_ids"])
        settings = SamplingParams(max_tokens=25, ignore_eos=True)
        engine.add(i, prompt["prompt_token_ids"], settings, eos_token_ids=())
    while scheduler.num_unfinished():
        for update in engine.step():
            committed[update.request_id] += update.token_ids
        yield from seen
        seen.clear()
