"""Devices, sizes and threads: taken, or refused by name before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from peagle import _core
from peagle.backends import TorchBackend, select_backend, threads
from peagle.errors import ConfigError, PeagleError
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from tests.tiny import edit_config, make_head, make_target


@pytest.mark.parametrize(
    "device", ["cudax", "cuda:", "cuda:x", "cuda:-1", "cuda 0", "tpu", "", "CPU"]
)
def test_a_device_of_another_name_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="is not supported") as caught:
        select_backend(device, "float32")
    assert repr(device) in str(caught.value)


@pytest.mark.parametrize(
    ("found", "device"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (2, "cuda:99")]
)
def test_a_cuda_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: int, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(ConfigError, match=f"'{device}': torch finds {found} CUDA devices"):
        select_backend(device, "float32")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_a_cuda_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    backend = select_backend(device, "float32")
    assert isinstance(backend, TorchBackend)
    assert str(backend.device) == device


@pytest.mark.parametrize(
    ("head_dim", "device"), [(12, "cpu"), (264, "cpu"), (4, "cpu"), (5, "torch-cpu")]
)
def test_head_dims_that_the_kernels_do_not_take_are_refused_before_weights_are_read(
    tmp_path: Path, head_dim: int, device: str
) -> None:
    make_target(tmp_path / "good")
    good = Decoder.load(tmp_path / "good", select_backend(device, "float32"))
    head = make_head(tmp_path / "head")
    make_target(tmp_path / "bad")
    for folder in (tmp_path / "bad", head):
        edit_config(folder, head_dim=head_dim)
        (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=f"bad: head_dim is {head_dim}, expected"):
        Decoder.load(tmp_path / "bad", select_backend(device, "float32"))
    with pytest.raises(ConfigError, match=f"head: head_dim is {head_dim}, expected"):
        PEagleHead.load(head, good, max_position=64)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has not set its threads yet."""
    before = threads.num_threads()
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_was_set", False)
    yield monkeypatch
    _core.set_num_threads(before)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMP_NUM_THREADS": "3,1"}, 3),
        ({"PEAGLE_NUM_THREADS": "5", "OMP_NUM_THREADS": "3"}, 5),
        ({"PEAGLE_NUM_THREADS": "", "OMP_NUM_THREADS": "3"}, 3),
    ],
    ids=str,
)
def test_the_environment_sets_the_threads_of_the_kernels(
    fresh: pytest.MonkeyPatch, variables: dict[str, str], expected: int
) -> None:
    for name, value in variables.items():
        fresh.setenv(name, value)
    select_backend("cpu", "float32")
    assert threads.num_threads() == expected
    threads.set_num_threads(2)
    select_backend("cpu", "float32")
    assert threads.num_threads() == 2


def test_an_environment_that_says_nothing_changes_nothing(fresh: pytest.MonkeyPatch) -> None:
    before = threads.num_threads()
    select_backend("cpu", "float32")
    assert threads.num_threads() == before


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "100000"])
@pytest.mark.parametrize("name", threads.VARIABLES)
def test_a_bad_number_of_threads_is_named(fresh: pytest.MonkeyPatch, name: str, value: str) -> None:
    fresh.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name} is '{value}'"):
        select_backend("cpu", "float32")


@pytest.mark.parametrize("count", [0, -1, 2**70, 1.5, "2", True])
def test_set_num_threads_refuses_what_is_no_number_of_threads(count: int) -> None:
    with pytest.raises(PeagleError, match="number of threads is"):
        threads.set_num_threads(count)
