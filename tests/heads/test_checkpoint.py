"""Each misfit of a head is its own error, naming the thing, what was found and what was wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle.backends import select_backend
from peagle.errors import (
    CheckpointError,
    ConfigError,
    DraftVocabularyError,
    HeadMismatchError,
    MaskHiddenError,
)
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from tests.tiny import VOCAB, edit_config, edit_head, make_head, make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """The tiny target on the plain backend."""
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return Decoder.load(folder, select_backend("torch-cpu", "float32"))


@pytest.fixture(params=["vllm", "speculators"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A good head in each layout."""
    return make_head(tmp_path / "head", layout=request.param)


def load(folder: Path, target: Decoder) -> PEagleHead:
    """Loads for short contexts."""
    return PEagleHead.load(folder, target, max_position=128)


def test_a_good_head_loads(head: Path, target: Decoder) -> None:
    assert len(load(head, target).layers) == 2


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    """An edit that removes the tensor whose name ends in `name`."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[next(key for key in tensors if key.endswith(name))]

    return edit


@pytest.mark.parametrize(
    "name",
    ["fc.weight", "norm.weight", "hidden_norm.weight", "mlp.up_proj.weight", "q_proj.weight"],
)
def test_a_missing_tensor_is_named(head: Path, target: Decoder, name: str) -> None:
    edit_head(head, drop(name))
    with pytest.raises(CheckpointError, match=rf"{name}' is missing"):
        load(head, target)


def test_a_head_without_mask_hidden_is_called_an_eagle3_head(head: Path, target: Decoder) -> None:
    edit_head(head, drop("mask_hidden"))
    with pytest.raises(MaskHiddenError, match="'mask_hidden' is missing") as caught:
        load(head, target)
    assert "EAGLE-3" in str(caught.value.hint)


def test_mask_hidden_of_another_width_is_refused(head: Path, target: Decoder) -> None:
    edit_head(head, lambda t: t.update(mask_hidden=torch.zeros(1, 1, 64)))
    with pytest.raises(MaskHiddenError, match=r"\[1, 1, 64\], expected \[1, 1, 192\]"):
        load(head, target)


@pytest.mark.parametrize("key", ["ptd_token_id", "pard_token", "mask_token_id"])
def test_the_mask_token_is_read_under_any_of_its_names(
    tmp_path: Path, target: Decoder, key: str
) -> None:
    folder = make_head(tmp_path / "head")
    edit_config(folder, ptd_token_id=None)
    edit_config(folder, **{key: 7})
    assert load(folder, target).config.mask_token_id == 7


def test_a_missing_mask_token_is_named(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head")
    edit_config(folder, ptd_token_id=None)
    with pytest.raises(ConfigError, match="no mask token id"):
        load(folder, target)


def test_a_mask_token_without_a_row_is_refused(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head", config_changes={"ptd_token_id": VOCAB})
    with pytest.raises(HeadMismatchError, match=f"mask token id {VOCAB}"):
        load(folder, target)


def test_an_unwanted_tensor_is_named(head: Path, target: Decoder) -> None:
    edit_head(head, lambda t: t.update({"layers.7.mlp.up_proj.weight": torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"fit no parameter: layers\.7"):
        load(head, target)


def test_partial_biases_are_refused(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head", config_changes={"attention_bias": True})
    edit_head(
        folder,
        lambda t: t.update(
            {
                f"{layer}.self_attn.{name}_proj.bias": torch.zeros(size)
                for layer in ("midlayer", "layers.1")
                for name, size in (("q", 64), ("k", 32), ("v", 32))
            }
        ),
    )
    with pytest.raises(CheckpointError, match=r"o_proj\.bias' is missing"):
        load(folder, target)


@pytest.mark.parametrize("layout", ["vllm", "speculators"])
def test_a_head_for_another_hidden_size_is_refused(
    tmp_path: Path, target: Decoder, layout: str
) -> None:
    folder = make_head(tmp_path / "head", hidden=32, layout=layout)
    with pytest.raises(HeadMismatchError, match="target_hidden_size is 32, the target has 64"):
        load(folder, target)


def test_a_head_for_another_vocabulary_is_refused(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head", vocab=VOCAB + 3)
    with pytest.raises(HeadMismatchError, match=f"vocab_size is {VOCAB + 3}"):
        load(folder, target)


def test_taps_past_the_last_layer_are_refused(tmp_path: Path, target: Decoder) -> None:
    changes = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 9]}}
    folder = make_head(tmp_path / "head", config_changes=changes)
    with pytest.raises(HeadMismatchError, match=r"taps \[1, 4, 9\]"):
        load(folder, target)


def set_d2t(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """An edit of the offsets."""

    def edit(tensors: dict[str, Any]) -> None:
        tensors["d2t"] = change(tensors["d2t"])

    return edit


@pytest.mark.parametrize(
    ("edit", "message", "hint"),
    [
        (drop("d2t"), "'d2t' is missing", ""),
        (set_d2t(torch.zeros_like), "all zeros", ""),
        (set_d2t(lambda d: d + torch.arange(len(d))), "is unusable", "absolute"),
        (set_d2t(lambda d: d.index_fill(0, torch.tensor([3]), 90)), "do not increase at", ""),
        (set_d2t(lambda d: d.index_fill(0, torch.tensor([0]), -2)), "maps to target id -2", ""),
        (set_d2t(lambda d: d[:-1]), r"\[40\], expected \[41\]", ""),
    ],
    ids=["missing", "zeros", "absolute ids", "not increasing", "out of range", "too short"],
)
def test_an_unusable_d2t_is_refused(
    head: Path, target: Decoder, edit: Callable[..., None], message: str, hint: str
) -> None:
    edit_head(head, edit)
    with pytest.raises((DraftVocabularyError, CheckpointError), match=message) as caught:
        load(head, target)
    assert hint in str(caught.value.hint)


def test_a_full_vocabulary_head_may_ship_a_d2t_of_zeros(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head", draft_vocab=VOCAB)
    plain = load(folder, target).target_ids
    edit_head(folder, lambda t: t.update(d2t=torch.zeros(VOCAB, dtype=torch.int64)))
    assert (load(folder, target).target_ids == plain).all()


def test_a_truncated_file_is_named(head: Path, target: Decoder) -> None:
    path = head / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load(head, target)


def test_a_model_prefix_is_accepted(tmp_path: Path, target: Decoder) -> None:
    folder = make_head(tmp_path / "head", layout="speculators")

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    edit_head(folder, edit)
    assert len(load(folder, target).layers) == 2
