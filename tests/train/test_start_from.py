"""A run may go on from a head trained before: every weight and the draft vocabulary are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.backends import select_backend
from peagle.errors import CheckpointError, HeadMismatchError, MaskHiddenError
from peagle.models.llama import Decoder
from peagle.train.start import draft_vocab_of, start_from_head, untrained_head
from tests.tiny import MASK_TOKEN
from tests.train.tiny_run import CONFIG, run


@pytest.fixture(scope="module")
def trained(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(target_folder, tmp_path_factory.mktemp("first")).head


def stored(head: Path) -> dict[str, torch.Tensor]:
    return load_file(head / "model.safetensors")


def test_every_weight_of_the_head_is_taken_over(target_folder: Path, trained: Path) -> None:
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    head = untrained_head(target, CONFIG)
    start_from_head(head, trained)
    tensors = stored(trained)
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(parameter.detach(), tensors.pop(name).float(), rtol=0, atol=0)
    assert set(tensors) == {"d2t"}


def test_the_draft_vocabulary_stays_whatever_the_new_answers_are(
    target_folder: Path, trained: Path, tmp_path: Path
) -> None:
    again = run(target_folder, tmp_path / "out", replace(CONFIG, seed=1), start=trained)
    assert torch.equal(stored(again.head)["d2t"], stored(trained)["d2t"])
    assert not torch.equal(stored(again.head)["fc.weight"], stored(trained)["fc.weight"])
    assert "started from the head `head`" in (again.head / "README.md").read_text()


@pytest.mark.parametrize("first_from_head", [True, False])
def test_a_checkpoint_of_another_start_is_refused(
    first_from_head: bool, target_folder: Path, trained: Path, tmp_path: Path
) -> None:
    run(target_folder, tmp_path / "out", start=trained if first_from_head else None)
    with pytest.raises(CheckpointError, match="start_sha256"):
        run(target_folder, tmp_path / "out", start=None if first_from_head else trained)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"num_layers": 1}, "num_layers is 2"), ({"draft_vocab_size": 50}, "draft_vocab_size is 60")],
)
def test_a_head_of_other_sizes_is_refused_before_any_work(
    change: dict[str, int], named: str, target_folder: Path, trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(HeadMismatchError, match=named):
        run(target_folder, tmp_path / "out", replace(CONFIG, **change), start=trained)
    assert not (tmp_path / "out" / "corpus").exists()


def test_a_head_of_another_mask_token_is_refused(target_folder: Path, trained: Path) -> None:
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    with pytest.raises(HeadMismatchError, match="mask_token_id"):
        draft_vocab_of(trained, target, MASK_TOKEN + 1, CONFIG)


def test_a_start_that_is_no_p_eagle_head_is_refused(
    target_folder: Path, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "config.json").write_bytes((trained / "config.json").read_bytes())
    tensors = stored(trained)
    del tensors["mask_hidden"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(MaskHiddenError):
        run(target_folder, tmp_path / "out", start=folder)
