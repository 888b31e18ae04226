"""The target of all training tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import make_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return folder
