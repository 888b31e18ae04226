"""Drafts above temperature 0: how they are chosen, what may verify them, what the text becomes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle import LLM, SamplingParams, _core
from peagle.errors import (
    ConfigError,
    DraftProbsSumError,
    IllegalDraftsError,
    PeagleError,
    ShapeMismatchError,
)
from peagle.llm import TokensPrompt
from peagle.propose.candidates import DrafterPass, by_coupled_race, by_likelihood
from peagle.propose.choose import DRAFTS, VERIFICATIONS, check_drafting
from peagle.propose.tree import fixed_shape
from tests.tiny import random_ids

LEGAL = {("coupled", drafts) for drafts in DRAFTS} | {
    ("rejection", "sampled"),
    ("block", "sampled"),
}
IDS = np.arange(4, dtype=np.int32)
LAW = np.array([[0.4, 0.3, 0.2, 0.1]], np.float32)


def texts(llm: LLM, temperature: float) -> list[list[int]]:
    """What several seeded requests get."""
    prompts = [TokensPrompt(prompt_token_ids=random_ids(n, seed=n)) for n in (2, 9, 17)]
    params = SamplingParams(max_tokens=32, temperature=temperature, seed=3, ignore_eos=True)
    return [output.token_ids for output in llm.generate(prompts, params)]


@pytest.mark.parametrize(("verification", "drafts"), product(VERIFICATIONS, DRAFTS))
def test_only_legal_pairs_are_taken(verification: str, drafts: str, tmp_path: Path) -> None:
    shape = "chain" if verification == "block" else "tree"
    if (verification, drafts) in LEGAL:
        assert check_drafting(verification, drafts, shape) == (drafts, shape)
        return
    with pytest.raises(ConfigError, match=f"{verification!r} and drafts is {drafts!r}: ") as caught:
        LLM(tmp_path, verification=verification, drafts=drafts)
    assert caught.value.hint is not None


def test_defaults_suit_the_verification() -> None:
    assert check_drafting("coupled", None, None) == ("coupled", "tree")
    assert check_drafting("rejection", None, None) == ("sampled", "tree")
    assert check_drafting("block", None, None) == ("sampled", "chain")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"verification": "typical"}, "verification is 'typical'"),
        ({"drafts": "beam"}, "drafts is 'beam'"),
        ({"verification": "block", "draft_shape": "tree"}, "draft_shape is 'tree'"),
    ],
)
def test_unknown_words_and_block_trees_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM("nowhere", **settings)


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("drafts", DRAFTS)
def test_coupled_text_does_not_depend_on_how_drafts_are_chosen(
    folder: Path, drafts: str, shape: str
) -> None:
    plain = LLM(folder / "target", dtype="float32", max_model_len=128)
    llm = LLM(
        folder / "target",
        head=folder / "head",
        dtype="float32",
        max_model_len=128,
        num_speculative_tokens=5,
        drafts=drafts,
        draft_shape=shape,
    )
    for temperature in (0.0, 0.5, 1.5):
        assert texts(llm, temperature) == texts(plain, temperature)
    assert llm.engine.scheduler.stats()["accepted"] > 0


@pytest.mark.parametrize(
    ("verification", "shape"), [("rejection", "chain"), ("rejection", "tree"), ("block", "chain")]
)
def test_sampled_drafts_are_accepted_and_text_repeats_with_its_seed(
    folder: Path, verification: str, shape: str
) -> None:
    def fresh() -> LLM:
        return LLM(
            folder / "target",
            head=folder / "head",
            dtype="float32",
            max_model_len=128,
            num_speculative_tokens=4,
            verification=verification,
            draft_shape=shape,
        )

    llm = fresh()
    first = texts(llm, 1.5)
    assert first == texts(fresh(), 1.5)
    assert all(len(tokens) == 32 for tokens in first)
    stats = llm.engine.scheduler.stats()
    assert 0 < stats["accepted"] < stats["drafted"]
    plain = LLM(folder / "target", dtype="float32", max_model_len=128)
    assert texts(llm, 0.0) == texts(plain, 0.0)


def test_a_fixed_shape_depends_on_its_size_alone() -> None:
    assert fixed_shape(4, 1) == (-1, 0, 1, 2)
    for budget in range(1, 32):
        shape = fixed_shape(budget, 8)
        assert len(shape) == budget
        assert all(-1 <= parent < node for node, parent in enumerate(shape))
        assert shape == fixed_shape(31, 8)[:budget]
    assert fixed_shape(7, 8).count(-1) > 1


def scheduler(verification: str) -> _core.Scheduler:
    """One request at temperature 1 that wants a draft."""
    made = _core.Scheduler(
        num_blocks=8,
        block_size=4,
        max_num_seqs=2,
        max_num_batched_tokens=16,
        max_model_len=16,
        num_speculative_tokens=2,
        verification=verification,
    )
    made.add(0, np.array([1, 2], np.int32), max_tokens=8, temperature=1.0, seed=5)
    return made


def one_draft(made: _core.Scheduler, **settings: Any) -> _core.Verdicts:
    """Verifies a window of one draft, token 1, of the first request."""
    rows = np.zeros((1, 4), np.float32)
    made.update(_core.verify(made.schedule(), rows, "float32"))
    drafts = _core.Drafts(
        np.array([0]),
        np.array([0, 1], np.int32),
        np.array([1], np.int32),
        np.array([-1], np.int32),
        **settings,
    )
    return _core.verify(made.schedule(drafts), np.zeros((2, 4), np.float32), "float32")


def laws(probs: np.ndarray[Any, Any], mode: str = "sampled") -> dict[str, Any]:
    """Arguments of `Drafts`."""
    starts = np.array([0, len(probs)], np.int32)
    return {"mode": mode, "draft_probs": probs, "depth_starts": starts, "target_ids": IDS}


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_drafts_of_other_modes_are_refused_by_name(verification: str, mode: str) -> None:
    """B01, https://github.com/vllm-project/vllm/pull/54282: drafts over the verifier's noise."""
    with pytest.raises(IllegalDraftsError, match=f"{verification} cannot take {mode} drafts"):
        one_draft(scheduler(verification), **laws(LAW, mode))


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (None, "without draft probabilities at depth 1"),
        (LAW[:0], "without draft probabilities at depth 1"),
        (LAW * np.float32(np.nan), "draft probability NaN"),
        (LAW - np.float32(0.2), "draft probability -0.1"),
        (LAW * np.float32(1.1), "sum to 1.1"),
        (LAW * np.array([1, 0, 2.5, 1], np.float32), "draft probability 0 for token 1"),
    ],
)
def test_unusable_draft_probabilities_are_an_error_of_the_request(
    verification: str, probs: np.ndarray[Any, Any] | None, message: str
) -> None:
    """B02, https://github.com/huggingface/transformers/issues/47932, and B04,
    https://github.com/vllm-project/vllm/issues/40149: sampled drafts need the law that drew them.
    """
    settings = {"mode": "sampled"} if probs is None else laws(probs)
    verdicts = one_draft(scheduler(verification), **settings)
    assert [request for request, _ in verdicts.errors] == [0]
    assert message in verdicts.errors[0][1]
    assert len(verdicts.token_ids) == 0


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block"])
def test_usable_draft_probabilities_verify(verification: str) -> None:
    verdicts = one_draft(scheduler(verification), **laws(LAW))
    assert verdicts.errors == []
    assert 1 <= len(verdicts.token_ids) <= 2


def test_laws_that_do_not_fit_are_refused() -> None:
    settings = laws(LAW) | {"depth_starts": np.array([0], np.int32)}
    with pytest.raises(ShapeMismatchError):
        one_draft(scheduler("rejection"), **settings)
    with pytest.raises(ValueError, match="come together"):
        one_draft(scheduler("rejection"), mode="sampled", draft_probs=LAW)
    with pytest.raises(ValueError, match=r"drafts is .beam., expected one of"):
        one_draft(scheduler("coupled"), mode="beam")
    with pytest.raises(ValueError, match=r"verification is .beam., expected one of"):
        scheduler("beam")
    assert issubclass(DraftProbsSumError, PeagleError)


def drafting(*temperatures: float) -> Any:
    """A draft plan that asks for two drafts of each request, at position 3."""
    made = scheduler("coupled")
    for request, temperature in enumerate(temperatures, 1):
        made.add(request, np.array([1, 2], np.int32), max_tokens=8, temperature=temperature, seed=5)
    plan = made.schedule()
    rows = np.zeros((1 + len(temperatures), 4), np.float32)
    return made.update(_core.verify(plan, rows, "float32")).draft


def test_a_race_at_temperature_0_is_won_by_the_likeliest(folder: Path) -> None:
    llm = LLM(folder / "target", head=folder / "head", dtype="float32", max_model_len=128)
    head = llm.head
    assert head is not None
    plan = drafting(0.0)
    logits = np.random.default_rng(2).normal(size=(4, len(head.target_ids))).astype(np.float32)
    raced = DrafterPass.of(head, logits, by_coupled_race(head, 3, plan))
    likeliest = DrafterPass.of(head, logits, by_likelihood(head, 3))
    assert (raced.draft_ids[2:] == likeliest.draft_ids[2:]).all()
    assert (raced.draft_ids[:2] != likeliest.draft_ids[:2]).any()
    # The same noise, and therefore the same winners, whichever rows are asked for.
    one = by_coupled_race(head, 3, plan)(np.array([1], np.int32), logits[1:2])
    assert (one[1] == raced.draft_ids[1]).all()


def test_a_draft_plan_says_what_drafts_are_chosen_by() -> None:
    plan = drafting()
    assert plan.temperature.tolist() == [1.0]
    assert plan.seeds.tolist() == [5]
    assert plan.first_position.tolist() == [3]


def test_bad_arguments_of_the_choosing_functions_are_refused() -> None:
    plan = drafting()
    good = np.zeros((2, 4), np.float32)
    both = np.arange(2, dtype=np.int32)
    for logits in (good[:1], good[:, :3].copy()):
        with pytest.raises(ShapeMismatchError):
            _core.coupled_candidates(plan, both, logits, IDS, 1, [1.0])
    for width, tau in [(0, [1.0]), (5, [1.0]), (1, []), (1, [0.0]), (1, [float("nan")])]:
        with pytest.raises(ValueError, match="expected"):
            _core.coupled_candidates(plan, both, good, IDS, width, tau)
    for rows in (both - 1, both + 1):
        with pytest.raises(ValueError, match="draft row"):
            _core.coupled_candidates(plan, rows, good, IDS, 1, [1.0])
    parents = np.array([-1, 0], np.int32)
    for starts in ([0], [0, 1], [1, 2], [0, 3]):
        with pytest.raises(ShapeMismatchError):
            _core.sample_drafts(plan, good, IDS, np.array(starts, np.int32), parents)
    bad = good.copy()
    bad[1, 2] = np.nan
    tokens, _ = _core.sample_drafts(plan, bad, IDS, np.array([0, 2], np.int32), parents)
    assert tokens.tolist() == [-1, -1]
