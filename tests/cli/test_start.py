"""The command line starts without what only its commands need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "gguf", "jinja2")


def test_the_command_line_starts_without_heavy_packages() -> None:
    code = f"import sys, peagle.cli; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
