"""Prompt files: every record form, and errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from peagle import datasets
from peagle.datasets import PROMPT_SETS, demo_prompts, load_prompts, read_prompts
from peagle.errors import DatasetError, DatasetMissingError


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_every_form_is_read(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    records = read_prompts(
        write(
            tmp_path / "a.jsonl",
            {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": ["r"]},
            {"id": "x", "messages": chat},
            {"prompt": "plain\u2028text", "unknown": 1},
            {
                "task_id": "H/0",
                "prompt": "def f():\n",
                "entry_point": "f",
                "canonical_solution": " pass",
            },
            {"question": "2 + 2?", "answer": "4"},
        )
    )
    first, second, third, fourth, fifth = records
    assert (first.id, first.category, first.turns) == ("81", "writing", ("one", "two"))
    assert first.messages == ({"role": "user", "content": "one"},)
    assert first.reference == ("r",)
    assert (second.id, second.turns, second.messages) == ("x", ("Hi", "Bye"), tuple(chat))
    assert (third.id, third.category, third.turns) == ("3", "other", ("plain\u2028text",))
    assert third.reference is None
    assert (fourth.id, fourth.turns, fourth.reference) == ("H/0", ("def f():\n",), (" pass",))
    assert fourth.messages[0]["content"].endswith("```python\ndef f():\n```")
    assert (fifth.turns, fifth.reference) == (("2 + 2?",), ("4",))


def test_gzip_a_byte_order_mark_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  \n{"prompt": "b"}'))
    assert [(record.id, record.turns[0]) for record in read_prompts(path)] == [
        ("1", "a"),
        ("4", "b"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object, found an empty list"),
        ('"a"', "expected an object, found a text"),
        ("{}", "expected exactly one of turns, messages, prompt, question, found none"),
        ('{"prompt": "a", "turns": ["a"]}', "found turns and prompt"),
        ('{"prompt": 3}', "prompt must be a text, not a number"),
        ('{"prompt": " "}', "prompt is empty"),
        ('{"turns": []}', "at least one text, not an empty list"),
        ('{"turns": "a"}', "at least one text, not a text"),
        ('{"turns": ["a", null]}', r"turns\[1\] must be a text, not null"),
        ('{"messages": [{"role": "user"}]}', "content must be a text, not null"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "not 'robot'"),
        ('{"messages": ["a"]}', r"messages\[0\] must be an object"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "not the assistant's"),
        ('{"prompt": "a", "id": true}', "id must be a text or an integer, not a truth value"),
        ('{"prompt": "a", "category": 1}', "category must be a text"),
        ('{"prompt": "a", "reference": 1}', "reference must be a text or a list"),
        ('{"prompt": "a", "id": "same"}', "id 'same' is already on line 1"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "fine", "id": "same"}\n\n' + line + "\n")
    with pytest.raises(DatasetError, match=message) as caught:
        read_prompts(path)
    assert f"{path}:3: " in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DatasetError, match=r"a\.jsonl:2: not UTF-8"):
        read_prompts(path)
    path.write_text("\n\n")
    with pytest.raises(DatasetError, match="has no records"):
        read_prompts(path)
    with pytest.raises(DatasetError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 999)[:-9])
    with pytest.raises(DatasetError, match="cannot be read"):
        read_prompts(tmp_path / "b.jsonl.gz")


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gsm8k", {"prompt": "mine"})
    assert load_prompts("gsm8k")[0].turns == ("mine",)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DatasetError, match="nope is neither a file nor a known") as caught:
        load_prompts("nope")
    assert "demo, mt-bench, humaneval, gsm8k" in str(caught.value.hint)


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_a_missing_package_gives_the_install_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(datasets, "distribution", missing)
    with pytest.raises(DatasetMissingError, match="is not installed") as caught:
        load_prompts(name)
    assert caught.value.hint == PROMPT_SETS[name].install_line


@pytest.mark.parametrize(("name", "count"), [("mt-bench", 80), ("humaneval", 164), ("gsm8k", 1319)])
def test_the_known_sets_are_whole(name: str, count: int) -> None:
    try:
        records = load_prompts(name)
    except DatasetMissingError as error:
        pytest.skip(f"{error}: {error.hint}")
    assert len(records) == count
    assert {len(record.turns) for record in records} == ({2} if name == "mt-bench" else {1})


def test_the_demo_has_three_prompts() -> None:
    assert [record.category for record in demo_prompts()] == ["explanation", "list", "code"]
    assert load_prompts("demo") == demo_prompts()
