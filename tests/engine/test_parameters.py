"""Values of another kind or out of range: one error that names the parameter, nothing started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle import LLM, PeagleError, SamplingParams
from peagle.engine import EngineConfig
from peagle.errors import ConfigError, InvalidMaxTokensError, PromptError
from peagle.params import _KINDS
from tests.tiny import VOCAB, random_ids

NO_INTEGERS = [1.5, "1", None, True, [1], 2**70, -(2**70), float("nan")]
NO_NUMBERS = ["x", None, True, [1.0], 1j, 10**400]
NO_SEEDS = [-1, 2**64, 1.5, "1", True]
NO_TOKEN_IDS = [5, None, "ab", [2**40], [-1], [1.5], [None], [[1]]]
NO_STRINGS = [5, None, [1], ["a", b"b"]]
NO_FLAGS = [None, 1, "yes"]
BAD: dict[str, list[Any]] = {
    "max_tokens": NO_INTEGERS,
    "temperature": NO_NUMBERS,
    "top_p": NO_NUMBERS,
    "top_k": NO_INTEGERS,
    "min_p": NO_NUMBERS,
    "seed": NO_SEEDS,
    "stop": NO_STRINGS,
    "stop_token_ids": NO_TOKEN_IDS,
    "ignore_eos": NO_FLAGS,
    "num_speculative_tokens": [value for value in NO_INTEGERS if value is not None],
    "min_tokens": NO_INTEGERS,
    "logit_bias": [5, "ab", [1], {-1: 0.0}, {1.5: 0.0}, {2**40: 0.0}, {1: "x"}, {1: None}],
    "allowed_token_ids": [value for value in NO_TOKEN_IDS if value is not None],
    "bad_words": NO_STRINGS,
    "logits_processor": [5, "x", [abs]],
    "repetition_penalty": NO_NUMBERS,
    "frequency_penalty": NO_NUMBERS,
    "presence_penalty": NO_NUMBERS,
    "logprobs": [-1, 1.5, "1", True, [1], 2**31],
    "logprobs_mode": [None, 1, "raw", "RAW_LOGPROBS"],
}


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """A shared engine; every test leaves it idle."""
    head = folder / "head"
    return LLM(folder / "target", head=head, dtype="float32", max_model_len=128)


def assert_idle(llm: LLM) -> None:
    """Nothing is running and every block is free."""
    scheduler = llm.engine.scheduler
    assert scheduler.num_unfinished() == 0
    assert scheduler.free_blocks() == scheduler.num_blocks


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD.items() for v in values], ids=repr
)
def test_a_value_of_another_kind_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}, expected")


def test_every_parameter_has_a_kind_and_bad_values() -> None:
    assert [f.name for f in fields(SamplingParams)] == list(_KINDS) == list(BAD)


def test_the_largest_values_and_those_of_numpy_are_taken(llm: LLM) -> None:
    largest = SamplingParams(
        max_tokens=2**63 - 1,
        temperature=1.7e308,
        top_k=2**63 - 1,
        seed=2**64 - 1,
        stop_token_ids=[2**31 - 1],
    )
    prompt = {"prompt_token_ids": random_ids(120)}
    assert len(llm.generate(prompt, largest)[0].token_ids) == 8
    numpy = SamplingParams(
        max_tokens=np.int32(4),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(7),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        stop_token_ids=np.array([VOCAB - 1]),  # type: ignore[arg-type]
    )
    plain = SamplingParams(4, 0.5, top_k=7, seed=2**64 - 1, stop_token_ids=[VOCAB - 1])
    results = [llm.generate(prompt, p)[0] for p in (numpy, plain)]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].outputs[0].seed == 2**64 - 1


BAD_PROMPTS: list[Any] = [[], [1, VOCAB], [2**40], [-1], [1.5], ["1"], [None], 7, None]


@pytest.mark.parametrize(
    "call",
    [
        lambda llm, ids: llm.stream(ids),
        lambda llm, ids: llm.generate({"prompt_token_ids": ids}),
        lambda llm, ids: llm.generate([{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": ids}]),
        lambda llm, ids: llm.propose(ids, 2),
    ],
    ids=["stream", "generate", "second of two", "propose"],
)
@pytest.mark.parametrize("ids", BAD_PROMPTS, ids=repr)
def test_a_bad_prompt_is_refused_before_anything_runs(
    llm: LLM, call: Callable[[LLM, Any], object], ids: Any
) -> None:
    other = llm.stream(random_ids(5), SamplingParams(max_tokens=6))
    next(other)
    with pytest.raises(PromptError, match="prompt"):
        call(llm, ids)
    *_, (_, last) = other
    assert last.finish_reason == "length"
    assert_idle(llm)


def test_a_stream_is_checked_when_it_is_made(llm: LLM) -> None:
    with pytest.raises(InvalidMaxTokensError):
        llm.stream([1, 2], SamplingParams(max_tokens=0))
    assert_idle(llm)


def test_a_stream_that_nobody_reads_frees_its_request(llm: LLM) -> None:
    stream = llm.stream([1, 2, 3])
    assert llm.engine.scheduler.num_unfinished() == 1
    stream.close()
    assert_idle(llm)
    llm.stream([1, 2, 3])  # dropped at once
    assert_idle(llm)


def test_a_closed_stream_says_that_it_was_aborted(llm: LLM) -> None:
    stream = llm.stream(random_ids(9), SamplingParams(max_tokens=50))
    _, output = next(stream)
    assert output.finish_reason is None
    stream.close()
    assert output.finish_reason == "abort"
    *_, (_, whole) = llm.stream(random_ids(9), SamplingParams(max_tokens=5))
    assert whole.finish_reason == "length"


SIZES = {
    "num_speculative_tokens": [-1, 32],
    "max_model_len": [-1, 0, 1, 513],
    "max_num_seqs": [-1, 0, 2**31],
    "max_num_batched_tokens": [-1, 0, 2**31],
    "block_size": [-1, 0, 8, 24, 2**31],
    "num_kv_blocks": [-1, 0, 2**31],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, v) for n, bad in SIZES.items() for v in [*bad, 1.5, "16", True, 2**70]],
    ids=repr,
)
def test_a_bad_size_is_named_before_weights_are_read(
    folder: Path, tmp_path: Path, name: str, value: Any
) -> None:
    (tmp_path / "config.json").write_bytes((folder / "target" / "config.json").read_bytes())
    with pytest.raises(ConfigError) as caught:
        LLM(tmp_path, head=folder / "head", **{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}, expected")


def test_a_bad_draft_shape_is_named_before_weights_are_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "target" / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="draft_shape is 'ring'"):
        LLM(tmp_path, draft_shape="ring")


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, 2**70])
@pytest.mark.parametrize("name", [f.name for f in fields(EngineConfig)])
def test_a_bad_size_of_the_engine_is_named(llm: LLM, name: str, value: Any) -> None:
    good = asdict(EngineConfig(8, 16, 2, 64, 100, 3))
    with pytest.raises(PeagleError, match=f"{name} is {value!r}"):
        EngineConfig(**(good | {name: value}))


def test_the_default_pool_fits_the_longest_context(folder: Path) -> None:
    llm = LLM(folder / "target", dtype="float32", max_num_seqs=1, block_size=32)
    assert llm.engine.scheduler.num_blocks * 32 >= llm.max_model_len == 512
