"""Tiny models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import make_head, make_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target and a head for it."""
    root = tmp_path_factory.mktemp("models")
    make_target(root / "target")
    make_head(root / "head")
    return root
