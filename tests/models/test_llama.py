"""The decoder equals `transformers`, however its rows are cut into passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.backends import Backend, select_backend
from peagle.errors import CheckpointError, ConfigError
from peagle.models.batch import Batch
from peagle.models.llama import Decoder
from tests.tiny import FAMILIES, edit_config, make_target, random_ids

BLOCK = 16
DEVICES = ["torch-cpu", "cpu"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A folder and the `transformers` model for each family."""
    root = tmp_path_factory.mktemp("targets")
    return {name: (root / name, make_target(root / name, name)) for name in FAMILIES}


def chain_batch(
    ids: Sequence[int], start: int, table: Sequence[int], parents: Sequence[int] | None = None
) -> Batch:
    """Rows `ids` of one request behind `start` context slots."""
    rows = len(ids)
    parents = list(range(-1, rows - 1)) if parents is None else list(parents)
    depth = [0] * rows
    for row, parent in enumerate(parents):
        depth[row] = 0 if parent < 0 else depth[parent] + 1
    index = np.arange(start, start + rows)
    slots = np.asarray(table)[index // BLOCK] * BLOCK + index % BLOCK
    return Batch(
        input_ids=np.asarray(ids, np.int32),
        positions=(start + np.asarray(depth)).astype(np.int32),
        slots=slots.astype(np.int32),
        query_start=np.array([0, rows], np.int32),
        context_lens=np.array([start], np.int32),
        parents=np.asarray(parents, np.int32),
        block_tables=np.asarray([table], np.int32),
    )


def run_chunks(
    decoder: Decoder, ids: list[int], chunks: list[int], table: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and taps of every token, computed in chunks of the given sizes."""
    backend = decoder.backend
    cache = decoder.new_cache(max(table) + 1, BLOCK)
    logits, taps, start = [], [], 0
    for size in chunks:
        batch = chain_batch(ids[start : start + size], start, table)
        hidden, aux = decoder.forward(batch, cache, BLOCK, decoder.default_taps())
        rows = np.arange(size, dtype=np.int32)
        logits.append(torch.as_tensor(decoder.logits(hidden, rows)).clone())
        taps.append(backend.tensor(aux).clone())
        start += size
    return torch.cat(logits), torch.cat(taps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_taps_equal_transformers(
    folders: dict[str, tuple[Path, Any]], family: str, device: str
) -> None:
    folder, reference = folders[family]
    decoder = Decoder.load(folder, select_backend(device, "float32"))
    ids = random_ids(50)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids]), output_hidden_states=True)
        logits, taps = run_chunks(decoder, ids, [50], [3, 0, 5, 1])
    states = [expected.hidden_states[i][0] for i in decoder.default_taps()]
    torch.testing.assert_close(logits, expected.logits[0], rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(taps, torch.cat(states, -1), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunks", [[1] * 50, [16, 16, 18], [49, 1], [7, 30, 13]], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_chunks_of_any_size_give_the_same_logits(
    folders: dict[str, tuple[Path, Any]], family: str, chunks: list[int], device: str
) -> None:
    decoder = Decoder.load(folders[family][0], select_backend(device, "float32"))
    ids = random_ids(50)
    with torch.inference_mode():
        whole, _ = run_chunks(decoder, ids, [50], [0, 1, 2, 3])
        parts, _ = run_chunks(decoder, ids, chunks, [9, 2, 7, 4])
    if decoder.backend.row_invariant:
        assert torch.equal(whole, parts)
    else:
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)


TREE = [-1, 0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("device", "dtype"), [("torch-cpu", "float32"), ("cpu", "float32"), ("cpu", "bfloat16")]
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_tree_row_equals_the_linear_run_of_its_path(
    folders: dict[str, tuple[Path, Any]], family: str, device: str, dtype: str
) -> None:
    decoder = Decoder.load(folders[family][0], select_backend(device, dtype))
    ids, nodes = random_ids(37), random_ids(len(TREE), seed=9)
    with torch.inference_mode():
        tree = window_logits(decoder, ids, nodes, TREE)
        for row in range(len(TREE)):
            path = path_to(row)
            linear = window_logits(decoder, ids, [nodes[i] for i in path], None)
            if decoder.backend.row_invariant:
                assert torch.equal(tree[row], linear[-1])
            else:
                torch.testing.assert_close(tree[row], linear[-1], rtol=1e-4, atol=1e-4)


def path_to(row: int) -> list[int]:
    """Rows from the root of `TREE` to `row`."""
    path = [row]
    while TREE[path[0]] >= 0:
        path.insert(0, TREE[path[0]])
    return path


def window_logits(
    decoder: Decoder, ids: list[int], nodes: list[int], parents: list[int] | None
) -> torch.Tensor:
    """Logits of a window behind `ids`."""
    cache = decoder.new_cache(4, BLOCK)
    decoder.forward(chain_batch(ids, 0, [1, 3, 2, 0]), cache, BLOCK)
    batch = chain_batch(nodes, len(ids), [1, 3, 2, 0], parents)
    hidden, _ = decoder.forward(batch, cache, BLOCK)
    rows = np.arange(len(nodes), dtype=np.int32)
    return torch.as_tensor(decoder.logits(hidden, rows)).clone()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_row_has_the_same_bits_in_every_window(
    folders: dict[str, tuple[Path, Any]], dtype: str
) -> None:
    decoder = Decoder.load(folders["llama"][0], select_backend("cpu", dtype))
    ids, nodes = random_ids(45), random_ids(17, seed=3)
    widest = window_logits(decoder, ids, nodes, None)
    for width in range(1, 17):
        assert torch.equal(window_logits(decoder, ids, nodes[:width], None), widest[:width])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit_config(tmp_path, hidden_size=None)
    with pytest.raises(ConfigError, match="missing key 'hidden_size'"):
        load(tmp_path)


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit_config(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(ConfigError, match="MambaForCausalLM") as caught:
        load(tmp_path)
    assert "LlamaForCausalLM" in str(caught.value.hint)


def test_an_unsupported_rope_type_is_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit_config(tmp_path, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0})
    with pytest.raises(ConfigError, match="'yarn'"):
        load(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 100, 5000])
def test_truncated_weights_are_named(tmp_path: Path, kept: int) -> None:
    make_target(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load(tmp_path)


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit_config(tmp_path, intermediate_size=128)
    with pytest.raises(CheckpointError, match=r"gate_proj.*\[112, 64\], expected \[128, 64\]"):
        load(tmp_path)


def test_left_over_tensors_are_named(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit_config(tmp_path, num_hidden_layers=7)
    with pytest.raises(CheckpointError, match=r"fit no parameter: layers\.7\."):
        load(tmp_path)


def test_sharded_weights_load(tmp_path: Path) -> None:
    model = make_target(tmp_path / "single")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    single, sharded = (load(tmp_path / name) for name in ("single", "sharded"))
    one, two = (window_logits(m, random_ids(9), [4], None) for m in (single, sharded))
    torch.testing.assert_close(one, two)


def load(folder: Path) -> Decoder:
    """Loads on the plain backend."""
    backend: Backend = select_backend("torch-cpu", "float32")
    return Decoder.load(folder, backend)
