"""Where a request ends inside a window: the earliest end cuts tokens, text, usage and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from peagle import LLM, SamplingParams
from peagle.errors import PromptTooLongError
from tests.engine.scripted import draft_from_texts
from tests.tiny import VOCAB, make_head, make_target, random_ids

PROMPT = random_ids(7, seed=9)
LENGTH = 14
MAX_MODEL_LEN = 64
SHAPES = ["off", "chain", "tree"]
DRAFTS = {"chain": "perfect", "tree": "tree"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose tokens are one character each, and a head."""
    root = tmp_path_factory.mktemp("models")
    make_target(root / "target")
    make_head(root / "head")
    characters = {chr(0x3041 + token): token for token in range(VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(characters, unk_token=chr(0x3041)))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.save(str(root / "target" / "tokenizer.json"))
    return root


@pytest.fixture(scope="module")
def llms(folder: Path) -> dict[str, LLM]:
    """One target without drafts, with chains, and with trees; both know the greedy text."""
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN}
    llms = {"off": LLM(folder / "target", **settings)}
    texts = [PROMPT + run(llms["off"], max_tokens=MAX_MODEL_LEN).token_ids]
    for shape, kind in DRAFTS.items():
        head = {"head": folder / "head", "num_speculative_tokens": 6}
        llms[shape] = LLM(folder / "target", **head, **settings)
        draft_from_texts(llms[shape], kind, texts)
    return llms


@pytest.fixture(autouse=True)
def no_blocks_are_lost(llms: dict[str, LLM]) -> Iterator[None]:
    """Whatever ends, and how: the pool is whole again."""
    yield
    for llm in llms.values():
        scheduler = llm.engine.scheduler
        assert scheduler.num_unfinished() == 0
        assert scheduler.free_blocks() == scheduler.num_blocks


def run(llm: LLM, prompt: list[int] = PROMPT, **changes: Any) -> Any:
    """The output for a prompt."""
    params = SamplingParams(**({"max_tokens": LENGTH} | changes))
    return llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0]


def first(base: list[int], token: int) -> int:
    """Tokens up to the first of its kind, itself included."""
    return base.index(token) + 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["eos", "stop_token_ids", "stop"])
def test_the_earliest_end_wins_and_stop_beats_length(
    llms: dict[str, LLM], shape: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B20, B21, B23: every offset of the end against every limit; counts agree; nothing leaks.

    https://github.com/sgl-project/sglang/issues/31599
    https://github.com/huggingface/transformers/issues/47912
    https://github.com/ikawrakow/ik_llama.cpp/pull/2358
    """
    llm = llms[shape]
    assert llm.tokenizer is not None
    base = run(llms["off"]).token_ids
    for at in range(LENGTH):
        changes: dict[str, Any] = {"logprobs": 0}
        if kind == "eos":
            monkeypatch.setattr(llm, "_eos_token_ids", (base[at],))
        else:
            value = [base[at]] if kind == "stop_token_ids" else llm.tokenizer.decode([base[at]])
            changes[kind] = value
        until = first(base, base[at])
        for limit in range(1, LENGTH + 1):
            output = run(llm, max_tokens=limit, **changes)
            kept, reason = (until, "stop") if until <= limit else (limit, "length")
            assert (output.token_ids, output.finish_reason) == (base[:kept], reason)
            shown = kept - 1 if kind == "stop" and reason == "stop" else kept
            assert output.text == llm.tokenizer.decode(base[:shown])
            assert [list(of) for of in output.logprobs] == [[token] for token in base[:kept]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stop_string_over_several_tokens_ends_at_its_last(
    llms: dict[str, LLM], shape: str
) -> None:
    """B20: two and three tokens long, wherever windows meet; the stream shows no more.

    https://github.com/sgl-project/sglang/issues/31599
    """
    llm = llms[shape]
    assert llm.tokenizer is not None
    base = run(llms["off"]).token_ids
    text = llm.tokenizer.decode(base)
    for length in (2, 3):
        for at in range(LENGTH - length + 1):
            stop = text[at : at + length]
            start = text.index(stop)
            output = run(llm, stop=stop, logprobs=1)
            assert (output.text, output.finish_reason) == (text[:start], "stop")
            assert output.token_ids == base[: start + length]
            assert len(output.logprobs) == start + length
            stream = llm.stream(PROMPT, SamplingParams(max_tokens=LENGTH, stop=stop))
            assert "".join(new for new, _ in stream) == text[:start]


@pytest.mark.parametrize("shape", SHAPES)
def test_ignore_eos_goes_on_and_keeps_stop_tokens(
    llms: dict[str, LLM], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B21: every token declared an end.

    https://github.com/huggingface/transformers/issues/47912
    """
    llm = llms[shape]
    base = run(llms["off"]).token_ids
    monkeypatch.setattr(llm, "_eos_token_ids", tuple(base))
    assert run(llm).token_ids == base[:1]
    assert run(llm, ignore_eos=True).token_ids == base
    output = run(llm, ignore_eos=True, stop_token_ids=[base[6]])
    assert output.token_ids == base[: first(base, base[6])]


@pytest.mark.parametrize("shape", SHAPES)
def test_min_tokens_holds_back_stop_strings_too(llms: dict[str, LLM], shape: str) -> None:
    """B14: a stop string that is whole by then ends nothing, one that completes later does.

    https://github.com/sgl-project/sglang/pull/33643
    """
    llm = llms[shape]
    assert llm.tokenizer is not None
    base = run(llms["off"]).token_ids
    for at in range(1, LENGTH):
        output = run(llm, stop=llm.tokenizer.decode(base[at - 1 : at + 1]), min_tokens=6)
        ends = [i for i in range(6, LENGTH) if base[i - 1 : i + 1] == base[at - 1 : at + 1]]
        assert len(output.token_ids) == (ends[0] + 1 if ends else LENGTH)


@pytest.mark.parametrize("shape", SHAPES)
def test_bad_words_are_words_of_text(llms: dict[str, LLM], shape: str) -> None:
    """B15: words of one to three tokens, in whatever window they would have been completed.

    https://github.com/vllm-project/vllm/pull/52311
    """
    llm = llms[shape]
    assert llm.tokenizer is not None
    text = llm.tokenizer.decode(run(llms["off"]).token_ids)
    for length in (1, 2, 3):
        for at in range(0, LENGTH - length + 1, 2):
            word = text[at : at + length]
            output = run(llm, bad_words=word)
            assert word not in output.text
            innocent = text.index(word) + length - 1
            assert output.text[:innocent] == text[:innocent]
            assert output.token_ids == run(llms["off"], bad_words=word).token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_end_of_the_context_is_a_length(
    llms: dict[str, LLM], shape: str, temperature: float
) -> None:
    """B25 (a, b): at every offset of a window, down to a prompt with room for one token.

    https://github.com/turboderp-org/exllamav2/issues/274
    """
    llm = llms[shape]
    text = PROMPT + run(llms["off"], temperature=temperature, seed=3, max_tokens=99).token_ids
    assert len(text) == MAX_MODEL_LEN
    if shape != "off":
        draft_from_texts(llm, DRAFTS[shape], [text])
    neighbour = run(llm, temperature=temperature, seed=3).token_ids
    for length in range(MAX_MODEL_LEN - 12, MAX_MODEL_LEN):
        params = SamplingParams(max_tokens=LENGTH, temperature=temperature, seed=3)
        stream = llm.stream(PROMPT, params)
        next(stream)
        output = run(llm, text[:length], temperature=temperature, seed=3, max_tokens=50, logprobs=0)
        assert output.token_ids == text[length:]
        assert output.finish_reason == "length"
        assert len(output.logprobs) == MAX_MODEL_LEN - length
        *_, (_, last) = stream
        assert last.token_ids == neighbour
    if shape == "chain":
        assert llm.engine.scheduler.stats()["accepted"] > 100
    with pytest.raises(PromptTooLongError, match=str(MAX_MODEL_LEN)):
        run(llm, text)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_abort_keeps_what_was_shown(llms: dict[str, LLM], shape: str) -> None:
    """Closed after any number of steps: what was given out is a beginning of the whole text."""
    llm = llms[shape]
    base = run(llms["off"], max_tokens=40).token_ids
    for steps in range(1, 4):
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=40, logprobs=0))
        for _ in range(steps):
            _, output = next(stream)
        stream.close()
        completion = output.outputs[0]
        assert completion.finish_reason == "abort"
        assert 0 < len(completion.token_ids) < 40
        assert completion.token_ids == base[: len(completion.token_ids)]
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids)
