"""What a device has to offer to run the models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from peagle.errors import ConfigError
from peagle.models.batch import Batch, LayerCache
from peagle.models.config import AttentionConfig, RopeConfig

Array = Any
"""A matrix of activations in the backend's own form (numpy on the CPU, torch elsewhere)."""


@dataclass(frozen=True)
class RopeTables:
    """Cosine and sine by position."""

    cos: Array
    """[max_position, head_dim / 2]"""
    sin: Array
    """[max_position, head_dim / 2]"""


@dataclass(frozen=True)
class HeadNorms:
    """Per-head RMSNorm of queries and keys (Qwen3)."""

    q: Array
    """[head_dim]"""
    k: Array
    """[head_dim]"""


def rope_angles(rope: RopeConfig, head_dim: int, max_position: int) -> torch.Tensor:
    """[max_position, head_dim / 2] angles in radians, float32."""
    frequencies = torch.tensor(rope.inverse_frequencies(head_dim), dtype=torch.float32)
    return torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)


class Backend(ABC):
    """Operators over activations in the model dtype.

    Names ending in `_` write into their last argument. `norm_linear` is RMSNorm followed by a
    linear map. Linear weights are whatever `pack` returned.
    """

    name: str
    row_invariant: bool
    """Whether a row's bits do not depend on the other rows of the call."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = torch.device(device)
        self.dtype = dtype

    def check(self, attention: AttentionConfig, source: str) -> None:
        """Refuses attention sizes that `attention` does not take, before weights are read.

        Raises:
            ConfigError: names `source`, the folder that asks for them.
        """
        if attention.head_dim % 2:
            raise ConfigError(
                f"{source}: head_dim is {attention.head_dim}, expected an even number"
            )

    @abstractmethod
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        """Prepares a linear weight [out, in] and bias [out] for `linear` and its kin."""

    @abstractmethod
    def array(self, tensor: torch.Tensor) -> Array:
        """A tensor in the backend's form and model dtype."""

    @abstractmethod
    def tensor(self, array: Array) -> torch.Tensor:
        """The inverse of `array`; shares memory where it can."""

    @abstractmethod
    def rope_tables(self, rope: RopeConfig, head_dim: int, max_position: int) -> RopeTables:
        """Tables for `attention`."""

    @abstractmethod
    def zeros_cache(
        self, num_blocks: int, block_size: int, attention: AttentionConfig
    ) -> LayerCache:
        """An empty paged KV cache of one layer."""

    @abstractmethod
    def zeros(self, rows: int, width: int) -> Array:
        """A zero matrix in the model dtype."""

    @abstractmethod
    def embed(self, table: Array, prepared: Any) -> Array:
        """Rows of an embedding table for the tokens of a prepared batch."""

    @abstractmethod
    def take(self, x: Array, rows: npt.NDArray[np.int32]) -> Array:
        """The named rows, copied."""

    @abstractmethod
    def put_(self, rows: npt.NDArray[np.int32], values: Array, into: Array) -> None:
        """Writes `values[i]` to `into[rows[i]]`."""

    @abstractmethod
    def concat(self, parts: list[Array]) -> Array:
        """Joins matrices along the last axis."""

    @abstractmethod
    def columns(self, x: Array, start: int, width: int) -> Array:
        """Columns `start` to `start + width`, copied."""

    @abstractmethod
    def copy(self, x: Array) -> Array:
        """A copy."""

    @abstractmethod
    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """RMSNorm, computed in float32."""

    @abstractmethod
    def linear(self, x: Array, weight: Any) -> Array:
        """x W^T + b."""

    @abstractmethod
    def linear_f32(self, x: Array, weight: Any) -> Array:
        """x W^T + b as float32: logits."""

    @abstractmethod
    def norm_linear(self, x: Array, norm: Array, eps: float, weight: Any) -> Array:
        """RMSNorm(x) W^T + b."""

    @abstractmethod
    def norm_linear_f32(self, x: Array, norm: Array, eps: float, weight: Any) -> Array:
        """RMSNorm(x) W^T + b as float32: logits."""

    @abstractmethod
    def linear_add_(self, x: Array, weight: Any, residual: Array) -> None:
        """residual += x W^T + b."""

    @abstractmethod
    def silu_linear_add_(self, gate_up: Array, weight: Any, residual: Array) -> None:
        """residual += (silu(gate) * up) W^T + b."""

    @abstractmethod
    def prepare(self, batch: Batch, block_size: int) -> Any:
        """Turns a batch into what `attention` wants, once per forward pass."""

    @abstractmethod
    def attention(
        self,
        qkv: Array,
        cache: LayerCache,
        prepared: Any,
        config: AttentionConfig,
        rope: RopeTables,
        norms: HeadNorms | None,
        eps: float,
        key_start: int,
    ) -> Array:
        """Rotates q and k, writes k and v to their slots, attends in path order.

        Args:
            qkv: [T, qkv_size] output of the fused projection.
            key_start: first slot index that is a key at all (1 for a drafter, whose slot 0 is
                never written).

        Returns:
            [T, num_heads * head_dim]
        """

    @abstractmethod
    def copy_slots(
        self, cache: LayerCache, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]
    ) -> None:
        """Moves KV from slot to slot, in order."""

    @abstractmethod
    def top_log_probs(
        self, logits: Array, width: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """The `width` likeliest entries of each row.

        Returns:
            Log probabilities [rows, width], descending, and their indices; the lower index comes
            first in a tie. A row with a NaN has NaN log probabilities.
        """

    @abstractmethod
    def argmax(self, logits: Array) -> npt.NDArray[np.int64]:
        """Row-wise argmax; the lowest index wins a tie. NaN rows give -1."""
