"""What cannot be trained is refused in one line, before work is lost; other inputs never resume."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    FileWriteError,
    PeagleError,
    TrainingDivergedError,
)
from peagle.train.config import LOSS_NAMES, TrainConfig
from peagle.train.losses import LOSSES
from peagle.train.prompts import MAX_COUNT, training_prompts
from tests.tiny import MASK_TOKEN, make_target
from tests.train.tiny_run import CONFIG, Silent, prompts, run

SHORT = replace(CONFIG, iterations=1)


@pytest.fixture(scope="module")
def finished(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "out"
    run(target_folder, out, SHORT)
    return out


@pytest.fixture(scope="module")
def other_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of the same shape with other weights."""
    folder = tmp_path_factory.mktemp("other")
    make_target(folder, seed=8)
    return folder


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def refusal(target: Path, out: Path, config: TrainConfig = SHORT, **more: Any) -> PeagleError:
    """The error of a run that is refused before it generates or trains anything."""
    listener = Silent()
    with pytest.raises(PeagleError) as caught:
        run(target, out, config, listener=listener, **more)
    assert listener.iterations == []
    assert listener.answers == 0
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    "change",
    [
        {"answer_len": 9},
        {"greedy_share": 0.1},
        {"temperature": 1.0},
        {"seed": 3},
        {"generation_batch": 4},
        {"num_answers": 11},
        {"num_answers": 13},
        {"num_answers": 20},
    ],
    ids=str,
)
def test_a_corpus_of_other_options_is_refused(
    target_folder: Path, out: Path, change: dict[str, Any]
) -> None:
    before = (out / "corpus" / "corpus.json").read_bytes()
    error = refusal(target_folder, out, replace(SHORT, **change), prompts=prompts(20))
    assert isinstance(error, DatasetError)
    assert next(iter(change)).removeprefix("generation_") in str(error)
    assert (out / "corpus" / "corpus.json").read_bytes() == before


def test_a_corpus_of_other_prompts_is_refused(target_folder: Path, out: Path) -> None:
    for others in (prompts(first_seed=1), prompts()[::-1], [[*prompts()[0], 1], *prompts()[1:]]):
        error = refusal(target_folder, out, prompts=others)
        assert isinstance(error, DatasetError)
        assert "prompts_sha256" in str(error)


def test_prompts_beyond_the_answers_do_not_matter(target_folder: Path, out: Path) -> None:
    run(target_folder, out, SHORT, prompts=prompts(20))


def test_a_corpus_of_another_target_is_refused(other_target: Path, out: Path) -> None:
    error = refusal(other_target, out)
    assert isinstance(error, DatasetError)
    assert "target_sha256" in str(error)


@pytest.mark.parametrize(
    "change", [{"other_lr": 1e-5}, {"iterations": 2}, {"k_train": 3}, {"loss": "ce"}], ids=str
)
def test_a_checkpoint_of_other_options_is_refused(
    target_folder: Path, out: Path, change: dict[str, Any]
) -> None:
    error = refusal(target_folder, out, replace(SHORT, **change))
    assert isinstance(error, CheckpointError)
    assert next(iter(change)) in str(error)


def test_a_checkpoint_of_another_mask_token_is_refused(target_folder: Path, out: Path) -> None:
    error = refusal(target_folder, out, mask_token_id=MASK_TOKEN + 1)
    assert isinstance(error, CheckpointError)
    assert f"mask_token_id {MASK_TOKEN}, this run asks for {MASK_TOKEN + 1}" in str(error)


def test_a_checkpoint_outlives_no_change_of_what_made_its_corpus(
    target_folder: Path, other_target: Path, out: Path
) -> None:
    for target, chosen, key in (
        (other_target, prompts(), "target_sha256"),
        (target_folder, prompts(first_seed=1), "prompts_sha256"),
    ):
        shutil.rmtree(out / "corpus")
        with pytest.raises(CheckpointError, match=key):
            run(target, out, SHORT, prompts=chosen)


@pytest.mark.parametrize("content", [b"", b"PK", b"not an archive at all"], ids=repr)
def test_a_damaged_batch_of_answers_is_named(
    target_folder: Path, out: Path, content: bytes
) -> None:
    damaged = next((out / "corpus").glob("batch-*.npz"))
    damaged.write_bytes(content)
    error = refusal(target_folder, out)
    assert isinstance(error, DatasetError)
    assert damaged.name in str(error)


def test_too_few_prompts_are_refused(target_folder: Path, tmp_path: Path) -> None:
    error = refusal(target_folder, tmp_path / "out", replace(CONFIG, num_answers=13))
    assert "12 prompts, expected at least num_answers 13" in str(error)


@pytest.mark.parametrize("layers", range(1, 7))
def test_a_target_too_shallow_for_three_taps_is_refused(tmp_path: Path, layers: int) -> None:
    make_target(tmp_path / "target", num_hidden_layers=layers)
    error = refusal(tmp_path / "target", tmp_path / "out", replace(SHORT, num_layers=1))
    assert isinstance(error, ConfigError)
    assert f"has {layers} layers, expected at least 7" in str(error)


def test_the_shallowest_target_and_the_deepest_head_train(tmp_path: Path) -> None:
    make_target(tmp_path / "target", num_hidden_layers=7)
    run(tmp_path / "target", tmp_path / "out", replace(SHORT, num_layers=7))


def test_more_layers_than_the_target_has_are_refused(target_folder: Path, tmp_path: Path) -> None:
    error = refusal(target_folder, tmp_path / "out", replace(SHORT, num_layers=9))
    assert isinstance(error, ConfigError)
    assert "num_layers is 9, expected at most the target's 8" in str(error)


def test_answers_beyond_the_targets_context_are_refused(
    target_folder: Path, tmp_path: Path
) -> None:
    error = refusal(target_folder, tmp_path / "out", replace(SHORT, answer_len=512))
    assert "512" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"cod_ratio": 0.0},
        {"cod_ratio": math.nan},
        {"depth_decay": 1.1},
        {"greedy_share": -0.1},
        {"loss": "mse"},
        {"heldout": 12},
        {"answer_len": 4},
        {"answer_len": 1},
        {"k_train": 24},
        {"matrix_lr": 0.0},
        {"matrix_lr": math.inf},
        {"other_lr": -1.0},
        {"other_lr": math.nan},
        {"feature_cache_gib": -1.0},
        {"feature_cache_gib": math.nan},
        {"seed": -1},
    ],
    ids=str,
)
def test_unusable_options_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(CONFIG, **change)


def test_the_shortest_answers_can_be_measured(target_folder: Path, tmp_path: Path) -> None:
    config = replace(SHORT, answer_len=SHORT.k_train + 1, greedy_share=1.0)
    result = run(target_folder, tmp_path / "out", config)
    assert result.acceptance.windows >= config.heldout


def test_every_loss_that_can_be_asked_for_exists() -> None:
    assert tuple(LOSSES) == LOSS_NAMES


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_diverges_ends_the_run_and_keeps_the_last_checkpoint(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    out = tmp_path / "out"
    kl_divergence = LOSSES["kl"]
    calls = 0

    def diverging(drafts: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return kl_divergence(drafts, wanted) * (value if calls == 4 else 1.0)

    monkeypatch.setitem(LOSSES, "kl", diverging)
    with pytest.raises(TrainingDivergedError, match=f"iteration 4: the loss is {value}"):
        run(target_folder, out)
    assert len((out / "log.jsonl").read_text().splitlines()) == 3
    assert torch.load(out / "checkpoint.pt")["iteration"] == 2


@pytest.mark.parametrize("name", ["", "corpus", "head"])
def test_a_file_in_the_place_of_a_folder_is_refused(
    target_folder: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    if name:
        out.mkdir()
    (out / name).write_text("")
    with pytest.raises(FileWriteError, match="cannot be made"):
        run(target_folder, out, SHORT)


def test_the_most_built_in_prompts_are_a_clear_limit() -> None:
    with pytest.raises(DatasetError, match=f"expected 0 to {MAX_COUNT}"):
        training_prompts(MAX_COUNT + 1, 0)
