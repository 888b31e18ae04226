"""Every key of a configuration is used as it stands, or refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import ConfigError, TokenizerError
from peagle.heads.config import HeadConfig
from peagle.models.config import DecoderConfig, read_json
from peagle.models.weights import weights_digest
from peagle.tokenizer import read_eos_token_ids
from tests.tiny import edit_config, make_head, make_target

NO_COUNTS = [0, -1, 1.5, "64", True, [64], {}]
NO_NUMBERS = [0, -1.0, "x", True, [1.0], {}]
NO_OBJECTS = ["linear", 7, [1], True]
NO_IDS = [-1, 1.5, "2", True, 2**31, [2, "3"], [None], {}]

LAYER_KEYS: dict[str, list[Any]] = {
    "hidden_size": NO_COUNTS,
    "num_attention_heads": NO_COUNTS,
    "num_key_value_heads": NO_COUNTS,
    "head_dim": NO_COUNTS,
    "intermediate_size": NO_COUNTS,
    "num_hidden_layers": NO_COUNTS,
    "vocab_size": NO_COUNTS,
    "rms_norm_eps": NO_NUMBERS,
    "rope_theta": NO_NUMBERS,
    "rope_scaling": NO_OBJECTS,
    "hidden_act": ["gelu", "relu", None, 7],
}
TARGET_KEYS = LAYER_KEYS | {
    "max_position_embeddings": NO_COUNTS,
    "sliding_window": NO_COUNTS,
    "eos_token_id": NO_IDS,
}
HEAD_KEYS = LAYER_KEYS | {
    "target_hidden_size": NO_COUNTS,
    "draft_vocab_size": NO_COUNTS,
    "num_aux_hidden_states": NO_COUNTS,
    "ptd_token_id": [i for i in NO_IDS if not isinstance(i, list)],
    "logit_scale": NO_NUMBERS,
    "eagle_config": NO_OBJECTS,
    "peagle": NO_OBJECTS,
    "transformer_layer_config": NO_OBJECTS,
    "eagle_aux_hidden_state_layer_ids": [5, "1,2", [1.5], ["1"], [-1], [True], {"a": 1}],
}
OUR_KEYS: dict[str, list[Any]] = {
    "k_train": NO_COUNTS,
    "target_sha256": [7, ["ab"], True],
    "taps": [5, [1.5]],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target (Mistral, whose sliding window counts) and a head."""
    root = tmp_path_factory.mktemp("models")
    make_target(root / "target", "mistral", sliding_window=128, rope_parameters=None)
    return root / "target", make_head(root / "head")


def refused(
    read: Callable[[Path], Any], good: Path, folder: Path, changes: dict[str, Any], key: str
) -> None:
    """The changed configuration is refused, and the message names file and key."""
    edited = folder / "config.json"
    edited.write_bytes((good / "config.json").read_bytes())
    if "rope_theta" in changes:
        edit_config(folder, rope_parameters=None)
    values = read_json(edited) | changes
    edited.write_text(json.dumps(values))
    with pytest.raises(ConfigError) as caught:
        read(folder)
    assert str(edited) in str(caught.value)
    assert key in str(caught.value)


def cases(keys: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    """Each key with each of its bad values."""
    return [(key, value) for key, values in keys.items() for value in values]


@pytest.mark.parametrize(("key", "value"), cases(TARGET_KEYS), ids=repr)
def test_a_bad_value_of_a_target_is_named(
    folders: tuple[Path, Path], tmp_path: Path, key: str, value: Any
) -> None:
    refused(DecoderConfig.from_folder, folders[0], tmp_path, {key: value}, key)


@pytest.mark.parametrize(("key", "value"), cases(HEAD_KEYS), ids=repr)
def test_a_bad_value_of_a_head_is_named(
    folders: tuple[Path, Path], tmp_path: Path, key: str, value: Any
) -> None:
    refused(HeadConfig.from_folder, folders[1], tmp_path, {key: value}, key)


@pytest.mark.parametrize(("key", "value"), cases(OUR_KEYS), ids=repr)
def test_a_bad_value_of_our_own_keys_is_named(
    folders: tuple[Path, Path], tmp_path: Path, key: str, value: Any
) -> None:
    named = "eagle_aux_hidden_state_layer_ids" if key == "taps" else key
    refused(HeadConfig.from_folder, folders[1], tmp_path, {"peagle": {key: value}}, named)


def test_a_good_configuration_is_read(folders: tuple[Path, Path]) -> None:
    target = DecoderConfig.from_folder(folders[0])
    assert target.max_position == 128
    assert target.attention.head_dim == 32
    assert HeadConfig.from_folder(folders[1]).draft_vocab_size == 41


@pytest.mark.parametrize("read", [DecoderConfig.from_folder, HeadConfig.from_folder])
def test_the_hint_of_a_missing_file_fits_targets_and_heads(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    with pytest.raises(ConfigError, match="does not exist") as caught:
        read(tmp_path)
    assert "model" not in str(caught.value.hint)


@pytest.mark.parametrize("value", NO_IDS, ids=repr)
def test_bad_end_ids_of_generation_config_are_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(TokenizerError, match="eos_token_id"):
        read_eos_token_ids(tmp_path)


def test_the_digest_of_weights_is_that_of_their_files(tmp_path: Path) -> None:
    contents = {"b.safetensors": b"second", "a.safetensors": b"first", "c.txt": b"other"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    parts = [hashlib.sha256(content).digest() for content in (b"first", b"second")]
    expected = hashlib.sha256(b"".join(parts)).hexdigest()
    assert weights_digest(tmp_path) == expected
    # A recorded digest stands for a file of the recorded size, and for no other.
    entry = {"size": 5, "sha256": hashlib.sha256(b"first").hexdigest()}
    (tmp_path / "checksums.json").write_text(json.dumps({"files": {"a.safetensors": entry}}))
    (tmp_path / "a.safetensors").write_bytes(b"other")
    assert weights_digest(tmp_path) == expected
    (tmp_path / "a.safetensors").write_bytes(b"longer")
    assert weights_digest(tmp_path) != expected
    # A list of another form says nothing.
    (tmp_path / "a.safetensors").write_bytes(b"first")
    for other in (
        "[1]",
        "{",
        "{}",
        '{"files": ["a.safetensors"]}',
        '{"files": {"a.safetensors": 5}}',
    ):
        (tmp_path / "checksums.json").write_text(other)
        assert weights_digest(tmp_path) == expected
