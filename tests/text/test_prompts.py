"""Training prompts: enough, the same each time, and apart from demo and benchmark prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from peagle.datasets import demo_prompts, load_prompts
from peagle.errors import DatasetError, DatasetMissingError
from peagle.train import prompts as module
from peagle.train.prompts import HELD_OUT, MAX_COUNT, training_prompts
from peagle.train.stdlib_docs import stdlib_entries

COUNT = 8000
SHARED_WORDS = 8  # a run of this many equal words counts as overlap


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str) -> Iterator[tuple[str, ...]]:
    found = words(text)
    for start in range(len(found) - SHARED_WORDS + 1):
        yield tuple(found[start : start + SHARED_WORDS])


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [messages[-1]["content"] for messages in training_prompts(COUNT, seed=0)]


def test_count_and_shape(texts: list[str]) -> None:
    assert len({" ".join(text.lower().split()) for text in texts}) == COUNT
    assert all(text.strip() == text and 5 < len(text) < 2500 for text in texts)
    assert "{" not in "".join(text for text in texts if "\n" not in text)  # no open placeholder
    for messages in training_prompts(300, seed=1):
        roles = [message["role"] for message in messages]
        assert roles in (["user"], ["system", "user"])


def test_the_same_seed_gives_the_same_prompts() -> None:
    first = training_prompts(1500, seed=3)
    assert training_prompts(1500, seed=3) == first
    assert training_prompts(500, seed=3) == first[:500]
    other = {messages[-1]["content"] for messages in training_prompts(1500, seed=4)}
    assert len(other & {messages[-1]["content"] for messages in first}) < 400


def test_no_prompt_has_an_address_of_this_run(texts: list[str]) -> None:
    assert not any(" at 0x" in text for text in texts)


def test_prompts_are_varied(texts: list[str]) -> None:
    openings = {tuple(words(text)[:2]) for text in texts}
    assert len(openings) > 500
    assert sum("python" in text.lower() for text in texts) > COUNT // 20
    assert sum(len(text) > 300 for text in texts) > COUNT // 25


def test_demo_prompts_are_held_out(texts: list[str]) -> None:
    for record in demo_prompts():
        assert any(word in record.turns[0].lower() for word in HELD_OUT)
    assert not any(word in text.lower() for text in texts for word in HELD_OUT)


@pytest.mark.parametrize("name", ["demo", "mt-bench", "humaneval", "gsm8k"])
def test_nothing_is_shared_with_the_benchmarks(texts: list[str], name: str) -> None:
    try:
        records = load_prompts(name)
    except DatasetMissingError as error:
        pytest.skip(f"{error}: {error.hint}")
    taken = {run for record in records for turn in record.turns for run in runs(turn)}
    whole = {tuple(words(turn)) for record in records for turn in record.turns}
    assert not [text for text in texts if tuple(words(text)) in whole]
    assert not [text for text in texts if any(run in taken for run in runs(text))]


def test_without_documentation_strings_there_are_still_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "stdlib_entries", tuple)
    assert len(training_prompts(6000, seed=0)) == 6000


@pytest.mark.parametrize("count", [-1, MAX_COUNT + 1])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(
        DatasetError, match=f"{count} built-in prompts .* expected 0 to {MAX_COUNT}"
    ):
        training_prompts(count, seed=0)


def test_the_largest_count_is_reached() -> None:
    assert len(training_prompts(MAX_COUNT, seed=5)) == MAX_COUNT


def test_the_documentation_is_found() -> None:
    entries = stdlib_entries()
    names = {entry.name for entry in entries}
    assert len(entries) > 1000
    assert {"shutil.copytree", "builtins.str.split", "json.dumps"} <= names
    assert sum(bool(entry.source) for entry in entries) > 200
