"""The plain reference reproduces every recorded draft of the other engine."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from .reference import Head, Target, draft_logits, reference_drafts, to_target_ids
from .variants import RULES, build

HERE = Path(__file__).parent
RECORDING: dict[str, Any] = json.loads((HERE / "vllm_drafts.json").read_text())
REQUESTS: list[dict[str, Any]] = RECORDING["requests"]
CASES: list[dict[str, Any]] = RECORDING["cases"]


def case_name(case: dict[str, Any]) -> str:
    """Readable test id."""
    batch = "batched" if case["batched"] else "single"
    return f"{case['variant'] or case['head']}-k{case['k']}-{batch}"


@cache
def target() -> Target:
    """The tiny target, read once."""
    return Target.load(HERE / "target")


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_reference_reproduces_the_recording(case: dict[str, Any], tmp_path: Path) -> None:
    """Token for token, every round of every request."""
    variant = case["variant"]
    head = Head.load(build(variant, tmp_path) if variant else HERE / case["head"])
    with torch.inference_mode():
        for request, rounds in zip(REQUESTS, case["rounds"], strict=True):
            for entry in rounds:
                committed = request["tokens"][: entry["num_committed"]]
                logits = draft_logits(target(), head, committed, case["k"])
                drafts = to_target_ids(head, logits.argmax(-1)).tolist()
                assert drafts == entry["drafts"], f"after {len(committed)} committed tokens"


def test_greedy_of_the_reference_target_is_the_recorded_output() -> None:
    """The target half of the reference agrees too."""
    with torch.inference_mode():
        for request in REQUESTS:
            prompt = request["tokens"][: request["num_prompt"]]
            output = request["tokens"][request["num_prompt"] :]
            assert target().greedy(prompt, len(output)) == output


def test_layouts_and_batching_do_not_change_the_drafts() -> None:
    """The same weights in the other layout, or all requests at once, draft the same."""
    same_k = [case for case in CASES if case["k"] == 5 and case["variant"] is None]
    assert len(same_k) == 4
    drafts = [
        [[entry["drafts"] for entry in rounds] for rounds in case["rounds"]] for case in same_k
    ]
    assert drafts[0] == drafts[1] == drafts[2] == drafts[3]


def test_the_recording_is_worth_comparing_with() -> None:
    """All variants are there, and acceptance is none, part and whole."""
    assert {case["variant"] for case in CASES} == {None, *RULES}
    accepted = {
        entry["accepted"]
        for case in CASES
        if case["k"] == 5 and case["head"] == "head_vllm" and case["variant"] is None
        for rounds in case["rounds"]
        for entry in rounds
    }
    assert accepted >= {0, 1, 2, 3, 4, 5}


def test_a_wrong_rule_is_noticed() -> None:
    """Negative control: shifting the RoPE base or dropping a norm changes recorded drafts."""
    head = Head.load(HERE / "head_vllm")
    tokens = REQUESTS[0]["tokens"][:20]
    right = draft_logits(target(), head, tokens, 5)
    wrong_theta = Head({**head.config, "rope_theta": 10000.0}, head.weights)
    wrong_residual = Head({**head.config, "norm_before_residual": True}, head.weights)
    for wrong in (wrong_theta, wrong_residual):
        assert (draft_logits(target(), wrong, tokens, 5) - right).abs().max() > 1e-2


def test_one_call_from_folders() -> None:
    """`reference_drafts` is the same thing from two folder names."""
    entry = CASES[0]["rounds"][0][3]
    committed = REQUESTS[0]["tokens"][: entry["num_committed"]]
    drafts = reference_drafts(HERE / "target", HERE / "head_vllm", committed, CASES[0]["k"])
    assert drafts == entry["drafts"]
    with pytest.raises(ValueError, match="two committed tokens"):
        reference_drafts(HERE / "target", HERE / "head_vllm", committed[:1], 3)
