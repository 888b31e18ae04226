"""The wheel installs and generates in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = """
import json, sys
from peagle import LLM, SamplingParams
llm = LLM(sys.argv[1], head=sys.argv[2], dtype="float32", max_model_len=128)
prompt = {"prompt_token_ids": [3, 1, 4, 1, 5]}
print(json.dumps(llm.generate(prompt, SamplingParams(max_tokens=9))[0].token_ids))
"""


@pytest.mark.slow
def test_the_wheel_runs_in_a_clean_environment(tmp_path: Path) -> None:
    from peagle import LLM, SamplingParams
    from tests.tiny import make_head, make_target

    make_target(tmp_path / "target")
    make_head(tmp_path / "head")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv is not None, "uv is not installed"
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "maturin", "build", "--release", "--out", str(tmp_path), cwd=ROOT)
    (wheel,) = tmp_path.glob("peagle-*.whl")
    run(uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    run(uv, "pip", "install", "--quiet", "--python", str(python), str(wheel))
    folders = [str(tmp_path / "target"), str(tmp_path / "head")]
    found = json.loads(run(str(python), "-c", SCRIPT, *folders, cwd=tmp_path))
    llm = LLM(folders[0], head=None, dtype="float32", max_model_len=128)
    prompt = {"prompt_token_ids": [3, 1, 4, 1, 5]}
    assert found == llm.generate(prompt, SamplingParams(max_tokens=9))[0].token_ids
    files = run("unzip", "-l", str(wheel)) if shutil.which("unzip") else ""
    assert not files or "shipped_head/model.safetensors" in files


def run(*command: str, cwd: Path | None = None) -> str:
    """Runs a command that must succeed; its stdout."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
