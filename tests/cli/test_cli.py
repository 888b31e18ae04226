"""Commands: JSON on stdout, one line on stderr and exit code 2 for bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from tests.tiny import edit_head, make_head, make_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target without a tokenizer, and a head."""
    root = tmp_path_factory.mktemp("models")
    make_target(root / "target")
    make_head(root / "head")
    return root


def peagle(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Runs the installed command."""
    command = [sys.executable, "-m", "peagle", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def assert_user_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr that holds the words; nothing on stdout; exit code 2."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "/nowhere"], ["/nowhere", "does not exist"]),
        (["--head", "/nowhere"], ["/nowhere"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "NaN"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-3"], ["top_k", "-3"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
        (["--max-tokens", "-4"], ["max_tokens", "-4"]),
        (["-k", "99"], ["99", "31"]),
        (["-k", "-1"], ["-1"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--device", "tpu"], ["tpu"]),
        (["--min-tokens", "300"], ["min_tokens", "300", "max_tokens"]),
        (["--presence-penalty", "nan"], ["presence_penalty", "NaN", "-2 to 2"]),
        (["--logit-bias", "x"], ["--logit-bias", "'x'", "TOKEN_ID=BIAS"]),
        (["--allowed-token-id", "49152"], ["allowed_token_ids", "49152", "49151"]),
        (["--bad-word", " "], ["bad_words", "at least one token"]),
        (["--logprobs-mode", "raw"], ["logprobs_mode", "'raw'", "raw_logprobs"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_generate_refuses_bad_input_in_one_line(arguments: list[str], words: list[str]) -> None:
    assert_user_error(peagle("generate", "hello", *arguments), *words)


def test_an_empty_prompt_is_refused() -> None:
    assert_user_error(peagle("generate", "", "--raw"), "prompt", "empty")


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    assert_user_error(peagle("generate", "word " * 9000, "--raw"), "8191")


def test_a_target_without_a_tokenizer_is_refused(folder: Path) -> None:
    done = peagle("generate", "hello", "--target", str(folder / "target"))
    assert_user_error(done, "tokenizer.json", "prompt_token_ids")


def test_a_head_without_mask_hidden_is_refused(folder: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path / "head")
    edit_head(head, lambda tensors: tensors.pop("mask_hidden"))
    done = peagle("generate", "x", "--target", str(folder / "target"), "--head", str(head))
    assert_user_error(done, "mask_hidden")


def test_an_unknown_option_is_refused() -> None:
    done = peagle("generate", "hello", "--tempreature", "1")
    assert done.returncode == 2
    assert "tempreature" in done.stderr


def test_generate_streams_text() -> None:
    done = peagle("generate", "What is the capital of France?", "--max-tokens", "16")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_generate_as_json_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    arguments = ["--max-tokens", "12", "--temperature", "0.8", "--seed", "5", "--json"]
    done = peagle("generate", "Name a colour.", *arguments, "--output", str(path))
    answer = json.loads(done.stdout)
    assert answer == json.loads(path.read_text())
    assert answer["seed"] == 5
    assert answer["usage"]["completion"] == len(answer["token_ids"]) <= 12
    plain = peagle("generate", "Name a colour.", *arguments, "--head", "none")
    assert json.loads(plain.stdout)["token_ids"] == answer["token_ids"]


def test_generate_passes_every_parameter_on() -> None:
    """The command's answer is that of `LLM` with the same parameters."""
    parameters: dict[str, Any] = {
        "max_tokens": 10,
        "min_tokens": 3,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "seed": 7,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.4,
        "logprobs": 2,
        "logprobs_mode": "processed_logprobs",
    }
    options = [part for name, value in parameters.items() for part in option(name, value)]
    lists: dict[str, Any] = {
        "bad_words": ["The", "Blue"],
        "stop": ["zebra"],
        "stop_token_ids": [2, 198],
        "logit_bias": {284: -100.0, 335: 1.5},
        "allowed_token_ids": list(range(100, 2000, 3)),
    }
    for name in ("bad_words", "stop_token_ids", "allowed_token_ids", "stop"):
        options += [part for value in lists[name] for part in option(name.removesuffix("s"), value)]
    options += [
        part for i, b in lists["logit_bias"].items() for part in option("logit_bias", f"{i}={b}")
    ]
    done = peagle("generate", "Name a colour.", "--json", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    params = SamplingParams(**parameters, **lists)
    expected = LLM("demo").chat([{"role": "user", "content": "Name a colour."}], params)[0]
    assert found["token_ids"] == expected.token_ids
    logprobs = expected.outputs[0].logprobs
    assert logprobs is not None
    assert [[int(i) for i in of] for of in found["logprobs"]] == [list(of) for of in logprobs]


def option(name: str, value: object) -> list[str]:
    """A parameter as an option of the command."""
    return ["--" + name.replace("_", "-"), str(value)]


def test_demo_as_json_reports_identical_texts() -> None:
    done = peagle("demo", "--json", "--max-tokens", "24", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identical"] is True
    assert report["acceptance_length"] == pytest.approx(1 + sum(report["accept_by_position"]))
    assert {"speedup", "tokens_per_s", "tokens_per_s_baseline", "k"} <= set(report)


def test_bench_as_json_has_a_result_for_each_k() -> None:
    arguments = ["--k", "0,2,4", "--prompts", "demo", "--max-tokens", "16", "--rounds", "1"]
    done = peagle("bench", "--target", "demo", "--head", "demo", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [r["k"] for r in report["results"]] == [0, 2, 4]
    plain, *drafted = report["results"]
    assert plain["speedup"] == 1.0
    assert plain["acceptance_length"] is None
    for result in drafted:
        shares = result["accept_by_position"]
        assert len(shares) == result["k"]
        assert shares == sorted(shares, reverse=True)
        assert result["acceptance_length"] == pytest.approx(1 + sum(shares))
    assert {"cpu", "simd", "threads", "dtype", "torch", "peagle", "seed"} <= set(report["meta"])


@pytest.mark.parametrize("ks", ["", "3,x", "-1", "0,99"])
def test_bench_refuses_bad_ks(ks: str) -> None:
    assert_user_error(peagle("bench", f"--k={ks}", "--prompts", "demo"))


COMMANDS = ("generate", "demo", "bench", "train")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = peagle(command, "--help", env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert f"Example: peagle {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_refused_before_the_run(
    command: str, tmp_path: Path
) -> None:
    arguments = {"generate": ["hello"], "train": ["--out", str(tmp_path / "run")]}
    (tmp_path / "file").touch()
    for output in (tmp_path / "no" / "x.json", tmp_path, tmp_path / "file" / "x.json"):
        # A target that is not there would be the next error.
        target = [] if command == "demo" else ["--target", "/nowhere"]
        done = peagle(command, *arguments.get(command, []), *target, "--output", str(output))
        assert_user_error(done, str(output), "cannot be written")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_a_drawn_seed_is_printed_and_gives_the_same_text_again() -> None:
    arguments = ["generate", "Name a colour.", "--temperature", "0.9", "--max-tokens", "12"]
    drawn = peagle(*arguments)
    assert drawn.returncode == 0, drawn.stderr
    [seed] = re.findall(r"^seed (\d+)$", drawn.stderr, re.MULTILINE)
    again = peagle(*arguments, "--seed", seed)
    assert again.stdout == drawn.stdout
    assert "seed" not in again.stderr


def test_a_greedy_answer_and_json_print_no_seed_on_stderr() -> None:
    greedy = peagle("generate", "Name a colour.", "--max-tokens", "4")
    assert "seed" not in greedy.stderr
    arguments = ["--temperature", "0.9", "--max-tokens", "4", "--json"]
    as_json = peagle("generate", "Name a colour.", *arguments)
    assert "seed" not in as_json.stderr
    assert json.loads(as_json.stdout)["seed"] >= 0


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    command = [sys.executable, "-m", "peagle", "generate", "hi", "--max-tokens", "3", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        stderr = process.stderr.read()
    assert (process.returncode, stderr) == (141, "")


def test_a_full_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "peagle", "generate", "hi", "--max-tokens", "3"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cannot be written" in done.stderr
