"""The head drafts what vLLM drafts, token for token, for every recorded head and layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.backends import select_backend
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.propose.once import drafts_from_scratch
from tests.golden.variants import build

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDING: dict[str, Any] = json.loads((GOLDEN / "vllm_drafts.json").read_text())


def case_name(case: dict[str, Any]) -> str:
    """Readable test id."""
    batch = "batched" if case["batched"] else "single"
    return f"{case['variant'] or case['head']}-k{case['k']}-{batch}"


@pytest.fixture(scope="module", params=["torch-cpu", "cpu"])
def target(request: pytest.FixtureRequest) -> Decoder:
    """The golden target in float32 on either backend."""
    return Decoder.load(GOLDEN / "target", select_backend(request.param, "float32"))


@pytest.mark.parametrize("case", RECORDING["cases"], ids=case_name)
def test_drafts_equal_those_of_vllm(target: Decoder, case: dict[str, Any], tmp_path: Path) -> None:
    variant = case["variant"]
    folder = build(variant, tmp_path) if variant else GOLDEN / case["head"]
    head = PEagleHead.load(folder, target, max_position=256)
    rounds = 0
    for request, entries in zip(RECORDING["requests"], case["rounds"], strict=True):
        for entry in entries:
            committed = np.asarray(request["tokens"][: entry["num_committed"]], np.int32)
            assert drafts_from_scratch(target, head, committed, case["k"]) == entry["drafts"]
            rounds += 1
    assert rounds > 10
