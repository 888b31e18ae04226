"""The head that ships with the package, for the demo target."""

from __future__ import annotations

from pathlib import Path

DEMO_MASK_TOKEN = "<empty_output>"
"""The unused token of the demo target whose embedding mask rows get."""


def demo_head_dir() -> Path:
    """Folder of the shipped head."""
    return Path(__file__).parent / "shipped_head"
