"""The models' operators on the CPU: numpy arrays and our own row-invariant kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from peagle import _core
from peagle.backends.base import Array, Backend, HeadNorms, RopeTables, rope_angles
from peagle.backends.threads import follow_environment
from peagle.errors import ConfigError
from peagle.models.batch import Batch, LayerCache
from peagle.models.config import AttentionConfig, RopeConfig

Numbers = npt.NDArray[np.uint16] | npt.NDArray[np.float32]

HEAD_DIM_STEP, MAX_HEAD_DIM = 8, 256
"""What the attention kernel takes."""


class CpuBackend(Backend):
    """Row-invariant by construction, in bfloat16 and float32.

    An output element is one fixed sequence of operations whatever the number of rows, and a row
    visits its keys in path order, so a row has the same bits in any chain, tree, chunk or batch.
    bfloat16 travels as uint16 (numpy has no bfloat16). See docs/kernels.md.
    """

    name = "cpu"
    row_invariant = True

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__("cpu", dtype)
        self._numpy_dtype = np.dtype(np.uint16 if dtype == torch.bfloat16 else np.float32)
        self._dtype_name = "bfloat16" if dtype == torch.bfloat16 else "float32"
        follow_environment()

    def check(self, attention: AttentionConfig, source: str) -> None:
        head_dim = attention.head_dim
        if head_dim % HEAD_DIM_STEP or head_dim > MAX_HEAD_DIM:
            raise ConfigError(
                f"{source}: head_dim is {head_dim}, expected a multiple of {HEAD_DIM_STEP} up to "
                f"{MAX_HEAD_DIM}",
                hint="the cpu backend takes no other; use another device",
            )

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> _core.PackedLinear:
        packed_bias = None if bias is None else self.array(bias)
        return _core.PackedLinear(self.array(weight), packed_bias, self._dtype_name)

    def array(self, tensor: torch.Tensor) -> Numbers:
        plain = tensor.detach().to("cpu", self.dtype).contiguous()
        if self.dtype == torch.bfloat16:
            plain = plain.view(torch.uint16)
        result: Numbers = plain.numpy()
        return result

    def tensor(self, array: Array) -> torch.Tensor:
        plain = torch.from_numpy(array)
        return plain.view(torch.bfloat16) if array.dtype == np.uint16 else plain

    def rope_tables(self, rope: RopeConfig, head_dim: int, max_position: int) -> RopeTables:
        angles = rope_angles(rope, head_dim, max_position)
        # Rounded to the model dtype, as transformers does before it rotates.
        cos, sin = (x.to(self.dtype).float().numpy() for x in (angles.cos(), angles.sin()))
        return RopeTables(cos, sin)

    def zeros_cache(
        self, num_blocks: int, block_size: int, attention: AttentionConfig
    ) -> LayerCache:
        heads, dim = attention.num_kv_heads, attention.head_dim
        return LayerCache(
            np.zeros((num_blocks, heads, dim, block_size), self._numpy_dtype),
            np.zeros((num_blocks, heads, block_size, dim), self._numpy_dtype),
        )

    def zeros(self, rows: int, width: int) -> Numbers:
        return np.zeros((rows, width), self._numpy_dtype)

    def embed(self, table: Numbers, prepared: Batch) -> Numbers:
        return table[prepared.input_ids]

    def take(self, x: Numbers, rows: npt.NDArray[np.int32]) -> Numbers:
        return x[rows]

    def put_(self, rows: npt.NDArray[np.int32], values: Numbers, into: Numbers) -> None:
        into[rows] = values

    def concat(self, parts: list[Array]) -> Array:
        return np.concatenate(parts, axis=-1)

    def columns(self, x: Array, start: int, width: int) -> Array:
        return np.ascontiguousarray(x[:, start : start + width])

    def copy(self, x: Numbers) -> Numbers:
        return x.copy()

    def rms_norm(self, x: Numbers, weight: Numbers, eps: float) -> Numbers:
        out = np.empty_like(x)
        _core.rms_norm(x, weight, eps, out)
        return out

    def linear(self, x: Numbers, weight: _core.PackedLinear) -> Numbers:
        out = self._empty(x, weight)
        weight.forward(x, out)
        return out

    def linear_f32(self, x: Numbers, weight: _core.PackedLinear) -> npt.NDArray[np.float32]:
        out = np.empty((x.shape[0], weight.out_features), np.float32)
        weight.forward_f32(x, out)
        return out

    def norm_linear(
        self, x: Numbers, norm: Numbers, eps: float, weight: _core.PackedLinear
    ) -> Numbers:
        out = self._empty(x, weight)
        weight.forward_norm(x, norm, eps, out)
        return out

    def norm_linear_f32(
        self, x: Numbers, norm: Numbers, eps: float, weight: _core.PackedLinear
    ) -> npt.NDArray[np.float32]:
        out = np.empty((x.shape[0], weight.out_features), np.float32)
        weight.forward_norm_f32(x, norm, eps, out)
        return out

    def linear_add_(self, x: Numbers, weight: _core.PackedLinear, residual: Numbers) -> None:
        weight.forward_add(x, residual)

    def silu_linear_add_(
        self, gate_up: Numbers, weight: _core.PackedLinear, residual: Numbers
    ) -> None:
        weight.forward_silu_add(gate_up, residual)

    def prepare(self, batch: Batch, block_size: int) -> Batch:
        return batch

    def attention(
        self,
        qkv: Numbers,
        cache: LayerCache,
        prepared: Batch,
        config: AttentionConfig,
        rope: RopeTables,
        norms: HeadNorms | None,
        eps: float,
        key_start: int,
    ) -> Numbers:
        out = np.empty((qkv.shape[0], config.output_size), self._numpy_dtype)
        _core.attention(
            qkv,
            out,
            cache.k,
            cache.v,
            prepared.positions,
            prepared.slots,
            prepared.query_start,
            prepared.context_lens,
            prepared.block_tables,
            prepared.parents,
            rope.cos,
            rope.sin,
            None if norms is None else norms.q,
            None if norms is None else norms.k,
            eps,
            config.num_heads,
            config.num_kv_heads,
            key_start,
            config.head_dim**-0.5,
        )
        return out

    def copy_slots(
        self, cache: LayerCache, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]
    ) -> None:
        _core.copy_slots(cache.k, cache.v, src, dst)

    def top_log_probs(
        self, logits: npt.NDArray[np.float32], width: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        width = min(width, logits.shape[1])
        log_probs = np.empty((len(logits), width), np.float32)
        ids = np.empty((len(logits), width), np.int32)
        _core.top_log_probs(logits, width, log_probs, ids)
        return log_probs, ids

    def argmax(self, logits: Array) -> npt.NDArray[np.int64]:
        best = logits.argmax(-1)
        best[np.isnan(logits).any(-1)] = -1
        result: npt.NDArray[np.int64] = best
        return result

    def _empty(self, x: Numbers, weight: _core.PackedLinear) -> Numbers:
        return np.empty((x.shape[0], weight.out_features), self._numpy_dtype)
