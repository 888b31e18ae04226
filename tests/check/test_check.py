"""`peagle check` passes on the sampler that ships, and fails on samplers that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import peagle.check.sampler as sampler
import peagle.engine
import peagle.verify
from peagle import _core
from peagle.check.model import check_model
from peagle.check.report import Case, CheckReport
from peagle.cli import app
from tests.tiny import make_head, make_target

FIELDS = [
    "name",
    "method",
    "drafts",
    "shape",
    "statistic",
    "p_value",
    "negative_control",
    "passed",
]
Verify = Callable[[_core.Plan, torch.Tensor], _core.Verdicts]
RIGHT: Verify = peagle.verify.verify


def shifted_tokens(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """Emits the token after the right one."""
    return RIGHT(plan, logits.roll(1, dims=1))


def too_cold(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """Ten percent below the temperature asked for."""
    return RIGHT(plan, logits / 0.9)


def no_window_rows(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """The rows of drafts repeat that of the last committed token."""
    start = torch.from_numpy(plan.logits_start)
    rows = torch.repeat_interleave(start[:-1], start.diff())
    return RIGHT(plan, logits[rows.long()])


def lenient(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """Drafts are a little likelier than the target has them: the text depends on the drafts."""
    drafts = torch.from_numpy(plan.input_ids[plan.logits_rows]).long()
    start = torch.from_numpy(plan.logits_start).long()
    biased = logits.clone()
    has_draft = start[:-1][start.diff() > 1]
    biased[has_draft, drafts[has_draft + 1]] += 0.5
    return RIGHT(plan, biased)


@pytest.fixture(scope="module")
def report() -> CheckReport:
    """The quick check of the sampler that ships."""
    return sampler.check_sampler(quick=True)


def failed(cases: list[Case]) -> list[str]:
    return [f"{case.method} {case.name}" for case in cases if not case.passed]


def test_the_sampler_passes_and_every_control_is_noticed(report: CheckReport) -> None:
    assert report.passed, failed(report.cases)
    controls = [case for case in report.cases if case.negative_control]
    assert {(c.method, c.drafts) for c in controls} == {(m.method, m.drafts) for m in sampler.MODES}
    assert all(0.0 <= case.p_value <= 1.0 for case in report.cases)


def test_the_same_numbers_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MODES", sampler.MODES[:2])
    assert sampler.check_sampler(quick=True) == sampler.check_sampler(quick=True)


@pytest.mark.parametrize("wrong", [shifted_tokens, too_cold, no_window_rows, lenient])
def test_wrong_samplers_fail(monkeypatch: pytest.MonkeyPatch, wrong: Verify) -> None:
    monkeypatch.setattr(peagle.verify, "verify", wrong)
    monkeypatch.setattr(sampler, "MODES", [m for m in sampler.MODES if m.method == "coupled"][:1])
    cases = sampler.check_sampler(quick=True).cases
    assert any("law" in name for name in failed(cases))


def test_the_command_prints_json_and_exits_with_one_if_the_sampler_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sampler, "MODES", sampler.MODES[:1])
    output = tmp_path / "check.json"
    right = CliRunner().invoke(app, ["check", "--quick", "--json", "--output", str(output)])
    assert right.exit_code == 0
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert found["passed"] is True
    assert [list(case) for case in found["cases"]] == [FIELDS] * len(found["cases"])
    monkeypatch.setattr(peagle.verify, "verify", shifted_tokens)
    wrong = CliRunner().invoke(app, ["check", "--quick"])
    assert wrong.exit_code == 1
    assert "FAILED" in wrong.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target and a random head."""
    path = tmp_path_factory.mktemp("models")
    make_target(path / "target")
    make_head(path / "head")
    return path


def test_a_model_passes_and_fails_with_a_wrong_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[Case]:
        return check_model(
            str(folder / "target"), str(folder / "head"), dtype="float32", quick=True
        )

    cases = run()
    assert not failed(cases)
    assert {(case.method, case.shape) for case in cases} >= {
        ("greedy", "chain"),
        ("greedy", "tree"),
        ("coupled", "chain"),
        ("coupled", "tree"),
    }
    monkeypatch.setattr(peagle.engine, "verify", no_window_rows)
    assert any("on equals off" in name for name in failed(run()))


def test_a_model_without_a_head_is_refused(folder: Path) -> None:
    result = CliRunner().invoke(
        app, ["check", "--quick", "--target", str(folder / "target"), "--head", "none"]
    )
    assert result.exit_code == 2
