"""Every sampling parameter through the whole engine: honoured at each node, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.errors import (
    ConfigError,
    GenerationError,
    InvalidParameterError,
    PeagleError,
    TokenizerMissingError,
)
from peagle.params import LogitsProcessor
from tests.engine.scripted import draft_from_texts
from tests.tiny import VOCAB, random_ids

PROMPT = {"prompt_token_ids": random_ids(9, seed=3)}
LENGTH = 16
SHAPES = ["off", "chain", "tree"]
TEXTS: list[list[int]] = []
"""What was generated, the latest first: the drafters know it."""


@pytest.fixture(scope="module")
def llms(folder: Path) -> dict[str, LLM]:
    """One target without drafts, with chains, and with trees that know the texts so far."""
    settings = {"dtype": "float32", "max_model_len": 128}
    head = {"head": folder / "head", "num_speculative_tokens": 6}
    llms = {"off": LLM(folder / "target", **settings)}  # type: ignore[arg-type]
    for shape, kind in (("chain", "perfect"), ("tree", "tree")):
        llms[shape] = LLM(folder / "target", **head, **settings)  # type: ignore[arg-type]
        draft_from_texts(llms[shape], kind, TEXTS)
    return llms


def run(llm: LLM, **changes: Any) -> Any:
    """The output for the prompt; `changes` are sampling parameters."""
    params = {"max_tokens": LENGTH, "seed": 5} | changes
    output = llm.generate(PROMPT, SamplingParams(**params))[0].outputs[0]  # type: ignore[arg-type]
    TEXTS.insert(0, PROMPT["prompt_token_ids"] + output.token_ids)
    return output


def outcome(llm: LLM, **changes: Any) -> tuple[Any, ...]:
    """What a caller sees, an error included."""
    try:
        found = run(llm, **changes)
    except PeagleError as error:
        return type(error), str(error)
    return found.token_ids, found.finish_reason, found.logprobs


def bounce(logits: np.ndarray[Any, Any], token_ids: np.ndarray[Any, Any]) -> None:
    """Pushes a token that depends on the whole path."""
    logits[int(token_ids.sum()) % VOCAB] += 5.0


EXAMPLES: dict[str, Callable[[list[int]], Any]] = {
    "max_tokens": lambda base: 5,
    "temperature": lambda base: 0.9,
    "top_p": lambda base: 0.5,
    "top_k": lambda base: 2,
    "min_p": lambda base: 0.3,
    "seed": lambda base: 99,
    "stop_token_ids": lambda base: [base[4]],
    "ignore_eos": lambda base: True,
    "min_tokens": lambda base: 8,
    "logit_bias": lambda base: {base[2]: -100.0, base[4]: 2.0},
    "allowed_token_ids": lambda base: list(range(0, VOCAB, 2)),
    "logits_processor": lambda base: bounce,
    "repetition_penalty": lambda base: 1.7,
    "frequency_penalty": lambda base: 1.5,
    "presence_penalty": lambda base: 1.8,
    "logprobs": lambda base: 3,
    "logprobs_mode": lambda base: "processed_logprobs",
}
"""A value for every parameter that needs no tokenizer, given the tokens of the plain request."""


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_every_parameter_gives_with_drafts_what_it_gives_without(
    llms: dict[str, LLM], shape: str, temperature: float
) -> None:
    """B18: set to a value that matters, each changes the output alike with and without drafts.

    https://github.com/NVIDIA/TensorRT-LLM/pull/17701
    """
    base = run(llms["off"], temperature=temperature).token_ids
    plain = outcome(llms["off"], temperature=temperature)
    assert_alike(outcome(llms[shape], temperature=temperature, num_speculative_tokens=2), plain)
    silent = set()
    for name, value in EXAMPLES.items():
        changes = {"temperature": temperature, name: value(base)}
        if name == "min_tokens":
            changes["stop_token_ids"] = [base[4]]
        if name == "logprobs_mode":
            changes |= {"logprobs": 2, "top_k": 3}
        expected = outcome(llms["off"], **changes)
        found = outcome(llms[shape], **changes)
        assert_alike(found, expected)
        if expected == plain:
            silent.add(name)
    # No end token is configured. At temperature 0 the seed and the cuts of the law say nothing; the
    # text drawn at the other one happens to repeat nothing.
    sampling = {"top_p", "top_k", "min_p", "seed"}
    penalties = {"repetition_penalty", "frequency_penalty", "presence_penalty"}
    allowed = {"ignore_eos", "temperature"} | (penalties if temperature else sampling)
    assert silent <= allowed, silent - allowed


def assert_alike(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Equal, log probabilities up to what more rows in an f32 pass may change."""
    assert found[:2] == expected[:2]
    for one, other in zip(found[2] or (), expected[2] or (), strict=True):
        assert next(iter(one)) == next(iter(other))
        for token_id in one.keys() & other.keys():
            assert one[token_id].logprob == pytest.approx(other[token_id].logprob, abs=1e-4)


def teacher_forced(llm: LLM, token_ids: list[int]) -> torch.Tensor:
    """Log probabilities [output, vocabulary] of the whole text in one pass of a fresh request."""
    rows = []
    for length in range(len(token_ids) - LENGTH, len(token_ids)):
        params = SamplingParams(max_tokens=1, logprobs=VOCAB)
        output = llm.generate({"prompt_token_ids": token_ids[:length]}, params)[0].outputs[0]
        assert output.logprobs is not None
        row = output.logprobs[0]
        rows.append([row[token].logprob for token in range(VOCAB)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_equal_teacher_forced_scores(
    llms: dict[str, LLM], shape: str, temperature: float
) -> None:
    """B37: of every token, accepted or not, with the likeliest ones, as many as there are tokens.

    https://github.com/ggml-org/llama.cpp/issues/27972
    """
    accepted = llms[shape].engine.scheduler.stats()["accepted"]
    run(llms["off"], temperature=temperature)
    output = run(llms[shape], temperature=temperature, logprobs=3)
    accepted = llms[shape].engine.scheduler.stats()["accepted"] - accepted
    assert accepted >= (0 if shape == "off" else LENGTH // 2)
    assert len(output.logprobs) == len(output.token_ids) == LENGTH
    scores = teacher_forced(llms["off"], PROMPT["prompt_token_ids"] + output.token_ids)
    assert scores.exp().sum(-1) == pytest.approx(np.ones(LENGTH), abs=1e-5)
    for reported, token_id, row in zip(output.logprobs, output.token_ids, scores, strict=True):
        likeliest = row.topk(3).indices.tolist()
        assert set(reported) == {token_id, *likeliest}
        for token, value in reported.items():
            assert value.logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert value.rank == 1 + int((row > row[token]).sum())
            assert value.decoded_token is None


@pytest.mark.parametrize("shape", SHAPES)
def test_processed_logprobs_are_of_the_law_that_is_sampled_from(
    llms: dict[str, LLM], shape: str
) -> None:
    changes = {"temperature": 0.8, "top_k": 4, "frequency_penalty": 1.0}
    run(llms["off"], **changes)
    output = run(llms[shape], logprobs=9, logprobs_mode="processed_logprobs", **changes)
    for reported, token_id in zip(output.logprobs, output.token_ids, strict=True):
        assert token_id in reported
        assert len(reported) == 4  # no other could have been drawn
        assert sum(np.exp(value.logprob) for value in reported.values()) == pytest.approx(1.0)


def test_logprobs_are_cut_with_the_text(llms: dict[str, LLM]) -> None:
    """B23: tokens, usage and log probabilities count the same for every limit.

    https://github.com/ikawrakow/ik_llama.cpp/pull/2358
    """
    base = run(llms["off"]).token_ids
    for length in range(1, 14):
        output = run(llms["tree"], max_tokens=length, logprobs=0)
        assert output.token_ids == base[:length]
        assert [list(reported) for reported in output.logprobs] == [[t] for t in base[:length]]
        stopped = run(llms["tree"], stop_token_ids=[base[length - 1]], logprobs=0)
        assert len(stopped.logprobs) == len(stopped.token_ids) == base.index(base[length - 1]) + 1
    assert run(llms["tree"]).logprobs is None


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_other_methods_honour_parameters_and_report_the_target(
    folder: Path, llms: dict[str, LLM], verification: str
) -> None:
    """B18, B37: whatever sampled drafts bring, bans hold and log probabilities are the target's.

    https://github.com/NVIDIA/TensorRT-LLM/pull/17701
    https://github.com/ggml-org/llama.cpp/issues/27972
    """
    llm = LLM(
        folder / "target",
        head=folder / "head",
        dtype="float32",
        max_model_len=128,
        num_speculative_tokens=6,
        verification=verification,
    )
    allowed = list(range(0, VOCAB, 2))
    for seed in range(3):
        output = run(
            llm,
            temperature=1.0,
            seed=seed,
            allowed_token_ids=allowed,
            logit_bias={2: 100.0, 4: 99.0, 6: 98.5},
            presence_penalty=0.5,
            stop_token_ids=[4],
            min_tokens=LENGTH,
            logprobs=0,
        )
        assert set(output.token_ids) <= set(allowed) - {4}
        scores = teacher_forced(llms["off"], PROMPT["prompt_token_ids"] + output.token_ids)
        for reported, token_id, row in zip(output.logprobs, output.token_ids, scores, strict=True):
            assert reported[token_id].logprob == pytest.approx(row[token_id].item(), abs=1e-4)
    assert llm.engine.scheduler.stats()["drafted"] > 0


def test_a_processor_sees_the_path_of_each_node(llms: dict[str, LLM]) -> None:
    """Prompt, output and drafts, as numpy arrays; every call is consistent with its history."""
    seen: list[tuple[int, ...]] = []

    def watch(logits: Any, token_ids: Any) -> Any:
        assert (logits.dtype, logits.shape) == (np.float32, (VOCAB,))
        assert token_ids.dtype == np.int32
        seen.append(tuple(token_ids.tolist()))
        return np.roll(logits, len(token_ids))

    outputs = {}
    for shape in SHAPES:
        seen.clear()
        outputs[shape] = run(llms[shape], logits_processor=watch).token_ids
        text = PROMPT["prompt_token_ids"] + outputs[shape]
        assert {tuple(text[: 9 + i]) for i in range(LENGTH)} <= set(seen)
    assert outputs["off"] == outputs["chain"] == outputs["tree"]


def raising(logits: Any, token_ids: Any) -> Any:
    """Fails at the fourth token."""
    if len(token_ids) >= 12:
        raise ValueError("no more")


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (raising, "ValueError: no more"),
        (lambda logits, token_ids: logits[:5], "a float32 array of 97 logits or None"),
        (lambda logits, token_ids: logits.astype(np.float64), "a float32 array of 97 logits"),
        (lambda logits, token_ids: logits * np.float32(np.nan), "the logit of token 0 NaN"),
        (lambda logits: None, "TypeError"),
    ],
    ids=["raises", "short", "float64", "nan", "signature"],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_failing_processor_ends_its_request_alone(
    llms: dict[str, LLM], shape: str, processor: LogitsProcessor, said: str
) -> None:
    llm = llms[shape]
    expected = run(llm).token_ids
    stream = llm.stream(PROMPT["prompt_token_ids"], SamplingParams(max_tokens=LENGTH))
    next(stream)
    with pytest.raises(GenerationError, match="logits_processor failed") as caught:
        run(llm, logits_processor=processor)
    assert said in str(caught.value)
    *_, (_, neighbour) = stream
    assert neighbour.token_ids == expected
    assert llm.engine.scheduler.free_blocks() == llm.engine.scheduler.num_blocks


def test_ids_that_leave_nothing_are_an_error_of_that_request(llms: dict[str, LLM]) -> None:
    """B35: an all-masked row is a clear error, and the engine lives.

    https://github.com/sgl-project/sglang/pull/21258
    """

    def mask_all(logits: Any, token_ids: Any) -> None:
        logits[:] = -np.inf

    for llm in llms.values():
        for conflict in (
            {"allowed_token_ids": [7], "min_tokens": 3, "stop_token_ids": [7]},
            {"logits_processor": mask_all},
        ):
            with pytest.raises(GenerationError, match="mask every token"):
                run(llm, **conflict)
        assert len(run(llm).token_ids) == LENGTH


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"min_tokens": -1}, InvalidParameterError, "min_tokens -1"),
        ({"min_tokens": 17}, InvalidParameterError, "min_tokens 17, expected a number from 0"),
        ({"repetition_penalty": 0}, InvalidParameterError, "repetition_penalty 0"),
        ({"repetition_penalty": float("nan")}, InvalidParameterError, "repetition_penalty NaN"),
        ({"frequency_penalty": 2.5}, InvalidParameterError, "frequency_penalty 2.5"),
        ({"presence_penalty": -3}, InvalidParameterError, "presence_penalty -3"),
        ({"logit_bias": {3: 101}}, InvalidParameterError, "logit_bias 101 for token 3"),
        ({"logit_bias": {VOCAB: 1}}, ConfigError, "logit_bias has token id 97, expected ids from"),
        ({"allowed_token_ids": []}, InvalidParameterError, "allowed_token_ids empty"),
        ({"allowed_token_ids": [1, VOCAB]}, ConfigError, "allowed_token_ids has token id 97"),
        ({"bad_words": ["x"]}, TokenizerMissingError, "bad_words"),
        ({"stop": "x"}, TokenizerMissingError, "stop"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_named_at_admission(
    llms: dict[str, LLM], changes: dict[str, Any], error: type[PeagleError], said: str
) -> None:
    with pytest.raises(error) as caught:
        run(llms["tree"], **changes)
    assert said in str(caught.value)
    assert llms["tree"].engine.scheduler.num_unfinished() == 0


def test_the_seed_alone_decides(llms: dict[str, LLM]) -> None:
    """B08: the same in any batch, after any number of steps; unseeded requests are independent.

    https://github.com/NVIDIA/TensorRT-LLM/issues/19487
    """
    llm = llms["tree"]
    sampled = {"temperature": 1.0, "max_tokens": 12, "seed": 42}
    alone = run(llm, **sampled).token_ids
    together = llm.generate([PROMPT] * 16, SamplingParams(**sampled))  # type: ignore[arg-type]
    assert all(output.token_ids == alone for output in together)
    assert run(llms["off"], **sampled).token_ids == alone
    unseeded = SamplingParams(temperature=1.0, max_tokens=12)
    texts = llm.generate([PROMPT] * 100, unseeded)  # type: ignore[list-item]
    assert len({tuple(output.token_ids) for output in texts}) > 90
    assert len({output.outputs[0].seed for output in texts}) == 100
    assert run(llm, **sampled).token_ids == alone


def test_samples_are_not_greedy_in_disguise(llms: dict[str, LLM]) -> None:
    """B07: at temperature 1 the first tokens of many seeds differ as much as without drafts.

    https://github.com/lablup/mlxcel/issues/902
    """
    for shape in ("chain", "tree"):
        for seed in range(12):
            changes = {"temperature": 1.0, "max_tokens": 6, "seed": seed}
            assert run(llms[shape], **changes).token_ids == run(llms["off"], **changes).token_ids
    texts = {tuple(run(llms["tree"], temperature=1.0, seed=s).token_ids) for s in range(12)}
    assert len(texts) == 12


def test_greedy_and_sampled_requests_share_a_batch(llms: dict[str, LLM]) -> None:
    """B10: in every order, each gets what it gets alone.

    https://github.com/vllm-project/vllm/pull/27077
    """
    llm = llms["tree"]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.8, "presence_penalty": 1.0},
    ]
    alone = [run(llms["off"], **kind).token_ids for kind in kinds]
    for order in permutations(range(3)):
        streams = [
            llm.stream(PROMPT["prompt_token_ids"], SamplingParams(LENGTH, seed=5, **kinds[i]))
            for i in order
        ]
        outputs = [list(stream)[-1][1] for stream in streams]
        assert [output.token_ids for output in outputs] == [alone[i] for i in order]
