"""A hint helps whoever sees it: options of one command are named in that command only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python" / "peagle"
# Commands may name their options; the demo target's hints name those of pip.
EXEMPT = ("cli", "train", "demo/target.py")
MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not str(path.relative_to(PACKAGE)).startswith(EXEMPT)
]


def hints(path: Path) -> list[str]:
    """Every text given as `hint=`."""
    calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.keyword)]
    values = [ast.unparse(keyword.value) for keyword in calls if keyword.arg == "hint"]
    return [value for value in values if value != "hint"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_hints_of_the_library_name_no_option_of_a_command(path: Path) -> None:
    assert not [hint for hint in hints(path) if re.search(r"(?<![\w-])--?[a-z]", hint)]


def test_there_are_hints() -> None:
    assert sum(len(hints(path)) for path in MODULES) > 15
