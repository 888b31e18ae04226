"""The models' operators in plain torch: for CUDA, for graph capture, and as the CPU's oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from peagle.backends.base import Array, Backend, HeadNorms, RopeTables, rope_angles
from peagle.models.batch import Batch, LayerCache
from peagle.models.config import AttentionConfig, RopeConfig


@dataclass(frozen=True)
class TorchLinear:
    """A plain linear weight."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class DenseBatch:
    """A batch as padded, fixed-shape tensors: R requests x W rows over M blocks."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    write_block: torch.Tensor
    """[T] int64"""
    write_offset: torch.Tensor
    """[T] int64"""
    row_map: torch.Tensor
    """[R, W] int64: flat row of each padded row (padding repeats row 0)"""
    flat_map: torch.Tensor
    """[T] int64: padded row of each flat row"""
    block_tables: torch.Tensor
    """[R, M] int64"""
    visible: torch.Tensor
    """[R, W, M * block_size] bool: keys by slot index"""
    slot_index: torch.Tensor
    """[M * block_size] int64"""


class TorchBackend(Backend):
    """Plain torch operators; shapes depend on the batch's padded sizes only."""

    name = "torch"
    row_invariant = False

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> TorchLinear:
        moved = weight.to(self.device, self.dtype).contiguous()
        return TorchLinear(moved, None if bias is None else bias.to(self.device, self.dtype))

    def array(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.dtype).contiguous()

    def tensor(self, array: Array) -> torch.Tensor:
        result: torch.Tensor = array
        return result

    def rope_tables(self, rope: RopeConfig, head_dim: int, max_position: int) -> RopeTables:
        angles = rope_angles(rope, head_dim, max_position)
        return RopeTables(self.array(angles.cos()), self.array(angles.sin()))

    def zeros_cache(
        self, num_blocks: int, block_size: int, attention: AttentionConfig
    ) -> LayerCache:
        heads, dim = attention.num_kv_heads, attention.head_dim
        dtype, device = self.dtype, self.device
        return LayerCache(
            torch.zeros(num_blocks, heads, dim, block_size, dtype=dtype, device=device),
            torch.zeros(num_blocks, heads, block_size, dim, dtype=dtype, device=device),
        )

    def zeros(self, rows: int, width: int) -> torch.Tensor:
        return torch.zeros(rows, width, dtype=self.dtype, device=self.device)

    def embed(self, table: torch.Tensor, prepared: DenseBatch) -> torch.Tensor:
        return F.embedding(prepared.input_ids, table)

    def take(self, x: torch.Tensor, rows: npt.NDArray[np.int32]) -> torch.Tensor:
        return x[self._index(rows)]

    def put_(self, rows: npt.NDArray[np.int32], values: torch.Tensor, into: torch.Tensor) -> None:
        into.index_put_((self._index(rows),), values)

    def concat(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts, dim=-1)

    def columns(self, x: torch.Tensor, start: int, width: int) -> torch.Tensor:
        return x[:, start : start + width].contiguous()

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * scaled.to(x.dtype)

    def linear(self, x: torch.Tensor, weight: TorchLinear) -> torch.Tensor:
        return F.linear(x, weight.weight, weight.bias)

    def linear_f32(self, x: torch.Tensor, weight: TorchLinear) -> torch.Tensor:
        return self.linear(x, weight).float()

    def norm_linear(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, weight: TorchLinear
    ) -> torch.Tensor:
        return self.linear(self.rms_norm(x, norm, eps), weight)

    def norm_linear_f32(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, weight: TorchLinear
    ) -> torch.Tensor:
        return self.norm_linear(x, norm, eps, weight).float()

    def linear_add_(self, x: torch.Tensor, weight: TorchLinear, residual: torch.Tensor) -> None:
        residual.add_(self.linear(x, weight))

    def silu_linear_add_(
        self, gate_up: torch.Tensor, weight: TorchLinear, residual: torch.Tensor
    ) -> None:
        gate, up = gate_up.chunk(2, dim=-1)
        self.linear_add_(F.silu(gate) * up, weight, residual)

    def prepare(self, batch: Batch, block_size: int) -> DenseBatch:
        layout = padded_layout(batch, block_size)
        return DenseBatch(
            input_ids=self._index(batch.input_ids),
            positions=self._index(batch.positions),
            write_block=self._index(batch.slots // block_size),
            write_offset=self._index(batch.slots % block_size),
            row_map=self._index(layout.row_map),
            flat_map=self._index(layout.flat_map),
            block_tables=self._index(batch.block_tables),
            visible=torch.from_numpy(layout.visible).to(self.device),
            slot_index=torch.arange(layout.visible.shape[-1], device=self.device),
        )

    def attention(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        prepared: DenseBatch,
        config: AttentionConfig,
        rope: RopeTables,
        norms: HeadNorms | None,
        eps: float,
        key_start: int,
    ) -> torch.Tensor:
        rows, dim = qkv.shape[0], config.head_dim
        heads, kv_heads = config.num_heads, config.num_kv_heads
        q, k, v = (
            part.view(rows, -1, dim)
            for part in torch.split(qkv, [heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
        )
        if norms is not None:
            q, k = self.rms_norm(q, norms.q, eps), self.rms_norm(k, norms.k, eps)
        cos, sin = rope.cos[prepared.positions], rope.sin[prepared.positions]
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        every = slice(None)
        cache.k[prepared.write_block, every, every, prepared.write_offset] = k
        cache.v[prepared.write_block, every, prepared.write_offset] = v
        requests = prepared.block_tables.shape[0]
        keys = cache.k[prepared.block_tables].permute(0, 2, 1, 4, 3)
        values = cache.v[prepared.block_tables].permute(0, 2, 1, 3, 4)
        keys, values = (x.reshape(requests, kv_heads, -1, dim) for x in (keys, values))
        groups = heads // kv_heads
        mask = prepared.visible & (prepared.slot_index >= key_start)
        out = F.scaled_dot_product_attention(
            q[prepared.row_map].transpose(1, 2),
            keys.repeat_interleave(groups, 1),
            values.repeat_interleave(groups, 1),
            attn_mask=mask[:, None],
        )
        return out.transpose(1, 2).reshape(-1, heads * dim)[prepared.flat_map]

    def copy_slots(
        self, cache: LayerCache, src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32]
    ) -> None:
        size = cache.v.shape[2]
        every = slice(None)
        for source, target in zip(src.tolist(), dst.tolist(), strict=True):
            (sb, so), (tb, to) = divmod(source, size), divmod(target, size)
            cache.k[tb, every, every, to] = cache.k[sb, every, every, so]
            cache.v[tb, every, to] = cache.v[sb, every, so]

    def top_log_probs(
        self, logits: torch.Tensor, width: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        rows = logits.float()
        # A stable sort keeps the lower index first in a tie, which topk does not promise.
        values, ids = rows.sort(dim=-1, descending=True, stable=True)
        log_probs = values[:, :width] - rows.logsumexp(-1, keepdim=True)
        return log_probs.cpu().numpy(), ids[:, :width].int().cpu().numpy()

    def argmax(self, logits: torch.Tensor) -> npt.NDArray[np.int64]:
        best = logits.argmax(-1)
        best = torch.where(logits.isnan().any(-1), -1, best)
        result: npt.NDArray[np.int64] = best.cpu().numpy()
        return result

    def _index(self, values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, torch.int64)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half RoPE of [T, heads, dim] by [T, dim / 2] tables."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


@dataclass(frozen=True)
class PaddedLayout:
    """Index maps between flat rows and padded [R, W] rows, and who sees which slot."""

    row_map: npt.NDArray[np.int32]
    flat_map: npt.NDArray[np.int32]
    visible: npt.NDArray[np.bool_]


def padded_layout(batch: Batch, block_size: int) -> PaddedLayout:
    """Lays a ragged batch out as R x W rows over M blocks, W being the widest request."""
    starts = batch.query_start
    widths = np.diff(starts)
    requests, width = len(widths), int(widths.max(initial=1))
    keys = batch.block_tables.shape[1] * block_size
    row_map = np.zeros((requests, width), np.int32)
    flat_map = np.zeros(len(batch.input_ids), np.int32)
    visible = np.zeros((requests, width, keys), np.bool_)
    visible[:, :, 0:2] = True  # padding rows need a key; real rows are overwritten below
    for request, (start, rows) in enumerate(
        zip(starts[:-1].tolist(), widths.tolist(), strict=True)
    ):
        context = int(batch.context_lens[request])
        row_map[request, :rows] = np.arange(start, start + rows)
        flat_map[start : start + rows] = request * width + np.arange(rows)
        seen = visible[request]
        for row in range(rows):
            parent = int(batch.parents[start + row])
            seen[row] = seen[parent] if parent >= 0 else np.arange(keys) < context
            seen[row, context + row] = True
    return PaddedLayout(row_map, flat_map, visible)
