"""Who may import whom (docs/architecture.md): data flows one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python" / "peagle"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE_USERS = {
    "engine",
    "verify",
    "errors",
    "backends.cpu",
    "backends.threads",
    "check.drafters",
    "check.trials",
    "propose.candidates",
    "propose.choose",
}

FORBIDDEN = {
    "models": ("engine", "llm", "runner", "propose", "verify", "heads", "train", "cli"),
    "heads": ("engine", "llm", "runner", "propose", "verify", "train", "cli"),
    "backends": ("engine", "llm", "runner", "propose", "verify", "heads", "train", "cli"),
    "propose": ("engine", "llm", "runner", "verify", "train", "cli"),
    "runner": ("engine", "llm", "verify", "train", "cli"),
    "sampling": ("engine", "llm", "runner", "propose", "verify", "models", "heads", "train", "cli"),
    "check": ("train", "cli", "bench"),
    "verify": ("engine", "llm", "runner", "propose", "models", "heads", "train", "cli"),
    "engine": ("llm", "train", "cli", "tokenizer", "detokenizer", "stop_checker", "demo"),
    "train": ("engine", "llm", "runner", "propose", "verify", "cli"),
    "config": ("llm", "train", "cli", "bench"),
    "llm": ("cli", "train", "bench"),
}


def name_of(path: Path) -> str:
    """Dotted name below the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def imports_of(path: Path) -> set[str]:
    """Run-time imports from the package; those for type checking only do not count."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if module == "peagle":
            found |= {alias.name for alias in node.names}
        elif module.startswith("peagle."):
            found.add(module.removeprefix("peagle."))
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_direction_rule(path: Path) -> None:
    layer = name_of(path).split(".")[0]
    banned = FORBIDDEN.get(layer, ())
    wrong = sorted(i for i in imports_of(path) if i.split(".")[0] in banned)
    assert not wrong, f"{name_of(path)} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_named_modules_import_the_core(path: Path) -> None:
    if "_core" in {i.split(".")[0] for i in imports_of(path)}:
        assert name_of(path) in CORE_USERS


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_stays_under_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
