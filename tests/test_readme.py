"""The README's examples run as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line.strip()
    for language, code in BLOCKS
    if language in ("sh", "bash", "console")
    for line in code.splitlines()
    if line.strip().startswith("peagle ")
]
# Long by nature; the same commands run with smaller numbers in tests/cli and tests/train.
LONG = ("peagle train", "peagle bench", "peagle demo")


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_the_python_example_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", [c for c in COMMANDS if not c.startswith(LONG)])
def test_a_command_runs(line: str) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "peagle", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", [c for c in COMMANDS if c.startswith(LONG)])
def test_a_long_command_has_options_that_exist(line: str) -> None:
    words = shlex.split(line, comments=True)
    done = subprocess.run(
        [sys.executable, "-m", "peagle", words[1], "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "200", "TERM": "dumb"},
    )
    for option in (w.split("=")[0] for w in words[2:] if w.startswith("--")):
        assert option in done.stdout, f"{words[1]} has no {option}"


def test_the_readme_shows_both_set_up_commands() -> None:
    assert "make demo" in README
    assert "make test" in README
    assert len(PYTHON) >= 1
    assert len(COMMANDS) >= 3
