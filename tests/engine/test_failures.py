"""Bad input and bad numbers: one clear error, nothing lost, nobody else's request suffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle import LLM, PeagleError, SamplingParams
from peagle.errors import (
    ConfigError,
    EmptyPromptError,
    GenerationError,
    HeadMissingError,
    InvalidMaxTokensError,
    InvalidMinPError,
    InvalidTemperatureError,
    InvalidTopKError,
    InvalidTopPError,
    KvCapacityError,
    PromptError,
    PromptTooLongError,
    SpeculationCapError,
    TokenizerMissingError,
    UnknownArgumentError,
)
from peagle.llm import TokensPrompt
from peagle.models.weights import weights_digest
from tests.tiny import VOCAB, make_head, make_target, random_ids


def make_llm(folder: Path, **settings: Any) -> LLM:
    """A fresh engine with the head."""
    settings = {"dtype": "float32", "max_model_len": 128, "num_speculative_tokens": 3} | settings
    return LLM(folder / "target", head=folder / "head", **settings)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """A shared engine; every test leaves it idle."""
    return make_llm(folder)


def prompt(length: int = 9, seed: int = 0) -> TokensPrompt:
    """A prompt of token ids."""
    return TokensPrompt(prompt_token_ids=random_ids(length, seed=seed))


def assert_idle(llm: LLM) -> None:
    """Nothing is running and every block is free."""
    scheduler = llm.engine.scheduler
    assert scheduler.num_unfinished() == 0
    assert scheduler.free_blocks() == scheduler.num_blocks


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ({"max_tokens": 0}, InvalidMaxTokensError, "0"),
        ({"max_tokens": -3}, InvalidMaxTokensError, "-3"),
        ({"temperature": -0.5}, InvalidTemperatureError, "-0.5"),
        ({"temperature": float("nan")}, InvalidTemperatureError, "NaN"),
        ({"temperature": float("inf")}, InvalidTemperatureError, "inf"),
        ({"top_p": 0.0}, InvalidTopPError, "0"),
        ({"top_p": 1.01}, InvalidTopPError, "1.01"),
        ({"top_p": float("nan")}, InvalidTopPError, "NaN"),
        ({"min_p": -0.1}, InvalidMinPError, "-0.1"),
        ({"min_p": 1.5}, InvalidMinPError, "1.5"),
        ({"top_k": -1}, InvalidTopKError, "-1"),
        ({"num_speculative_tokens": 4}, SpeculationCapError, "3"),
        ({"seed": -1}, PeagleError, "seed"),
        ({"seed": 2**64}, PeagleError, "seed"),
        ({"stop": "x"}, TokenizerMissingError, "tokenizer.json"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_bad_parameter_is_named_and_nothing_starts(
    llm: LLM, params: dict[str, Any], error: type[PeagleError], words: str
) -> None:
    with pytest.raises(error) as caught:
        llm.generate([prompt(), prompt(5)], SamplingParams(**params))
    assert words in str(caught.value)
    assert_idle(llm)


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"prompt_token_ids": []}, PromptError, "empty"),
        ({"prompt_token_ids": [1, VOCAB]}, PromptError, f"token 1 is {VOCAB}"),
        ({"prompt_token_ids": [-1]}, PromptError, "token 0 is -1"),
        ({"prompt_token_ids": [1.5]}, PromptError, "1.5"),
        ({"prompt_token_ids": [1] * 128}, PromptTooLongError, "128"),
        ({"tokens": [1]}, PromptError, "prompt_token_ids"),
        (7, PromptError, "int"),
        ("text", TokenizerMissingError, "tokenizer.json"),
    ],
    ids=["empty", "above", "below", "fraction", "too long", "unknown key", "int", "text"],
)
def test_a_bad_prompt_is_named_and_its_neighbours_do_not_start(
    llm: LLM, bad: Any, error: type[PeagleError], words: str
) -> None:
    with pytest.raises(error) as caught:
        llm.generate([prompt(), bad, prompt(5)])
    assert words in str(caught.value) + str(caught.value.hint)
    assert_idle(llm)


def test_an_unknown_argument_is_refused_with_the_nearest_name(folder: Path) -> None:
    with pytest.raises(UnknownArgumentError, match="'tempreature'") as caught:
        SamplingParams(tempreature=1.0)  # type: ignore[call-arg]
    assert "temperature" in str(caught.value.hint)
    with pytest.raises(UnknownArgumentError, match="'max_len'"):
        LLM(folder / "target", max_len=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_speculative_tokens": 99},
        {"num_speculative_tokens": -1},
        {"dtype": "int4"},
        {"device": "tpu"},
        {"max_model_len": 1},
        {"max_model_len": 10**6},
        {"block_size": 10},
        {"num_kv_blocks": -2},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"device": "torch-cpu", "row_invariant": True},
    ],
    ids=str,
)
def test_an_unusable_setting_is_refused(folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(PeagleError) as caught:
        make_llm(folder, **settings)
    assert any(str(value) in str(caught.value) for value in settings.values())


def test_drafts_without_a_head_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no head"):
        LLM(folder / "target", num_speculative_tokens=3)
    with pytest.raises(HeadMissingError):
        LLM(folder / "target").propose([1, 2, 3], 2)


def test_a_request_that_never_fits_is_refused_with_the_numbers(folder: Path) -> None:
    llm = make_llm(folder, num_kv_blocks=3)
    with pytest.raises(KvCapacityError, match="3"):
        llm.generate(prompt(), SamplingParams(max_tokens=60))
    assert_idle(llm)
    assert len(llm.generate(prompt(), SamplingParams(max_tokens=20))[0].token_ids) == 20


def test_more_requests_than_blocks_wait_for_their_turn(folder: Path) -> None:
    llm = make_llm(folder, num_kv_blocks=4)
    outputs = llm.generate([prompt(9, seed) for seed in range(6)], SamplingParams(max_tokens=30))
    assert [len(o.token_ids) for o in outputs] == [30] * 6
    assert_idle(llm)


def spoil(llm: LLM, request_id: int, after: int, value: float) -> None:
    """Makes the logits of one request bad from a step on."""
    forward = llm.engine.runner.forward
    steps = 0

    def bad(plan: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        logits = forward(plan)
        index = (
            plan.request_ids.tolist().index(request_id) if request_id in plan.request_ids else -1
        )
        if steps > after and index >= 0:
            logits[plan.logits_start[index] : plan.logits_start[index + 1], 3] = value
        return logits

    llm.engine.runner.forward = bad  # type: ignore[method-assign]


def test_nan_logits_end_their_request_only(folder: Path) -> None:
    params = SamplingParams(max_tokens=24)
    prompts = [prompt(9, seed) for seed in range(3)]
    expected = [make_llm(folder).generate(p, params)[0].token_ids for p in prompts]
    llm = make_llm(folder)
    spoil(llm, 1, 3, float("nan"))
    outputs = llm.generate(prompts, params)
    assert [o.finish_reason for o in outputs] == ["length", "error", "length"]
    assert "nan" in str(outputs[1].outputs[0].error).lower()
    assert [outputs[i].token_ids for i in (0, 2)] == [expected[i] for i in (0, 2)]
    found = outputs[1].token_ids
    assert found == expected[1][: len(found)]
    assert_idle(llm)


def test_nan_logits_of_the_only_request_raise(folder: Path) -> None:
    llm = make_llm(folder)
    spoil(llm, 0, 2, float("nan"))
    with pytest.raises(GenerationError, match=r"(?i)nan"):
        llm.generate(prompt())
    assert_idle(llm)


def test_nan_in_the_drafter_only_costs_drafts(folder: Path) -> None:
    params = SamplingParams(max_tokens=24)
    expected = make_llm(folder).generate(prompt(), params)[0].token_ids
    llm = make_llm(folder)
    proposer: Any = llm.engine.proposer
    forward, calls = proposer.head.forward, []

    class Spoiled:
        """The head, every third pass of it full of NaN."""

        def __getattr__(self, name: str) -> Any:
            return getattr(llm.head, name)

        def forward(self, *arguments: Any) -> Any:
            logits = forward(*arguments)
            calls.append(1)
            if len(calls) % 3 == 0:
                logits[:] = np.nan
            return logits

    proposer.head = Spoiled()
    assert llm.generate(prompt(), params)[0].token_ids == expected
    assert proposer.invalid_windows == len(calls) // 3 > 0


@pytest.mark.parametrize("depth", range(3))
def test_one_nan_costs_all_drafts_of_a_window_in_both_paths(folder: Path, depth: int) -> None:
    llm = make_llm(folder, draft_shape="chain")
    head: Any = llm.head

    class Spoiled:
        """The head, with a NaN at one depth."""

        def __getattr__(self, name: str) -> Any:
            return getattr(head, name)

        def forward(self, *arguments: Any) -> Any:
            logits = head.forward(*arguments)
            logits[depth : depth + 1, 2] = np.nan
            if len(logits) <= depth:  # the last windows are shorter
                logits[:, 2] = np.nan
            return logits

    proposer: Any = llm.engine.proposer
    proposer.head = llm.head = Spoiled()  # type: ignore[assignment]
    assert llm.propose(random_ids(9), 3) == []
    found = llm.generate(prompt(), SamplingParams(max_tokens=8))[0]
    assert len(found.token_ids) == 8
    assert found.outputs[0].num_drafted == 0 < proposer.invalid_windows


def warnings_of(caplog: pytest.LogCaptureFixture, folder: Path, **settings: Any) -> list[str]:
    """What loading logs."""
    caplog.clear()
    make_llm(folder, **settings)
    return [record.getMessage() for record in caplog.records]


def test_a_head_for_other_weights_or_fewer_drafts_is_said_once(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "models"
    make_target(root / "target")
    for sha256 in (None, "", weights_digest(root / "target")):
        ours = {"target_sha256": sha256, "k_train": 3}
        make_head(root / "head", config_changes={"peagle": ours})
        assert warnings_of(caplog, root) == []
    make_head(root / "head", config_changes={"peagle": {"target_sha256": "0" * 64}})
    [other] = warnings_of(caplog, root)
    assert str(root / "target") in other
    make_head(root / "head", config_changes={"peagle": {"k_train": 2}})
    [deeper] = warnings_of(caplog, root)
    assert "is 3, the head was trained for 2" in deeper
    assert warnings_of(caplog, root, num_speculative_tokens=2) == []
    assert warnings_of(caplog, folder) == []


def test_a_crash_in_a_step_leaves_the_engine_usable(folder: Path) -> None:
    params = SamplingParams(max_tokens=12)
    expected = make_llm(folder).generate(prompt(), params)[0].token_ids
    llm = make_llm(folder)
    forward = llm.engine.runner.forward

    def interrupted(plan: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    other = llm.stream(prompt(7, 3)["prompt_token_ids"], params)
    next(other)
    llm.engine.runner.forward = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompt(), params)
    llm.engine.runner.forward = forward  # type: ignore[method-assign]
    assert llm.generate(prompt(), params)[0].token_ids == expected
    *_, (_, last) = other
    plain = make_llm(folder).generate(prompt(7, 3), params)[0].token_ids
    assert last.token_ids == plain
    assert_idle(llm)


def test_closing_a_stream_frees_its_blocks(folder: Path) -> None:
    llm = make_llm(folder)
    stream = llm.stream(prompt()["prompt_token_ids"], SamplingParams(max_tokens=50))
    next(stream)
    assert llm.engine.scheduler.num_unfinished() == 1
    stream.close()
    assert_idle(llm)


def test_an_empty_list_of_prompts_gives_an_empty_list(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_the_core_refuses_an_empty_prompt_too(llm: LLM) -> None:
    with pytest.raises(EmptyPromptError):
        llm.engine.add(99, [], SamplingParams(), eos_token_ids=())


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [SamplingParams()]], ids=["dict", "list"])
def test_params_of_another_type_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(ConfigError, match="expected one SamplingParams"):
        llm.generate(prompt(), params)
    assert_idle(llm)


@pytest.mark.parametrize("value", [5, True, b"demo"], ids=str)
def test_a_folder_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="model is"):
        LLM(value)
    with pytest.raises(ConfigError, match="head is"):
        LLM("demo", head=value)
