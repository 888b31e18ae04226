"""Strict reading of safetensors folders: every tensor used once, every parameter filled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from peagle.errors import CheckpointError, ConfigError
from peagle.models.config import read_json


class WeightReader:
    """Hands out the tensors of a checkpoint and keeps account of them.

    Args:
        folder: holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
        file: another file to read instead.
        rename: maps a name found in the files to the name the model asks for; `None` drops it.

    Raises:
        CheckpointError: no weights, a damaged file, or two tensors with one name.
    """

    def __init__(
        self,
        folder: Path,
        rename: Callable[[str], str | None] = lambda name: name,
        *,
        file: str | None = None,
    ) -> None:
        self.folder = folder
        self._tensors: dict[str, tuple[Path, str]] = {}
        for path in [folder / file] if file is not None else _weight_files(folder):
            for stored in _tensor_names(path):
                name = rename(stored)
                if name is None:
                    continue
                if name in self._tensors:
                    raise CheckpointError(
                        f"{path}: {stored!r} is a second tensor for {name!r}, "
                        f"the first is {self._tensors[name][1]!r}"
                    )
                self._tensors[name] = (path, stored)
        self._unused = set(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        path, stored = self._locate(name)
        with safe_open(path, framework="pt") as file:
            return tuple(file.get_slice(stored).get_shape())

    def take(self, name: str, shape: Iterable[int], dtype: torch.dtype | None) -> torch.Tensor:
        """Reads one tensor and marks it used.

        Args:
            name: as the model calls it.
            shape: the expected shape.
            dtype: what to convert to; `None` keeps the stored dtype.

        Raises:
            CheckpointError: missing, or of another shape.
        """
        path, stored = self._locate(name)
        expected = tuple(shape)
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {stored!r} cannot be read: {error}") from error
        if tuple(tensor.shape) != expected:
            raise CheckpointError(
                f"{path}: {stored!r} has shape {list(tensor.shape)}, expected {list(expected)}"
            )
        self._unused.discard(name)
        return tensor if dtype is None else tensor.to(dtype)

    def skip(self, name: str) -> None:
        """Marks a tensor as knowingly not needed."""
        self._unused.discard(name)

    def finish(self) -> None:
        """Checks that nothing was left over.

        Raises:
            CheckpointError: names the tensors that no parameter wanted.
        """
        if self._unused:
            names = sorted(self._unused)
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise CheckpointError(
                f"{self.folder}: {len(names)} tensors fit no parameter: {shown}",
                hint="does config.json belong to these weights?",
            )

    def _locate(self, name: str) -> tuple[Path, str]:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.folder}: tensor {name!r} is missing") from None


def weights_digest(folder: Path) -> str:
    """SHA-256 over the SHA-256 of each safetensors file of a folder, in name order.

    A file that `checksums.json` lists (the demo target has one) with its size is not read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(_recorded_digest(path) or _file_digest(path))
    return digest.hexdigest()


def _recorded_digest(path: Path) -> bytes | None:
    listing = path.parent / "checksums.json"
    try:
        entry = read_json(listing)["files"][path.name]
        return bytes.fromhex(entry["sha256"]) if entry["size"] == path.stat().st_size else None
    except (ConfigError, LookupError, TypeError, ValueError):
        return None  # no such list, or somebody else's


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: no weight_map")
        return [folder / name for name in sorted(set(weight_map.values()))]
    single = folder / "model.safetensors"
    if not single.exists():
        raise CheckpointError(
            f"{folder}: no model.safetensors", hint="convert the weights to safetensors first"
        )
    return [single]


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or truncated: {error}", hint="fetch or export it again"
        ) from error
