"""The CPU kernels against torch, and the bits of a row whatever shares its call."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from peagle import _core

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as the kernels take it: bfloat16 as uint16."""
    tensor = tensor.contiguous()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The inverse of `to_numpy`."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def empty(dtype: torch.dtype, *shape: int) -> np.ndarray:
    return to_numpy(torch.zeros(shape, dtype=dtype))


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> _core.PackedLinear:
    packed_bias = None if bias is None else to_numpy(bias)
    return _core.PackedLinear(to_numpy(weight), packed_bias, str(weight.dtype).split(".")[1])


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = _core.num_threads()
    yield
    _core.set_num_threads(threads)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


class TestPackedLinear:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(("n", "k"), [(96, 64), (33, 50), (1, 7)])
    def test_matches_torch(self, dtype: torch.dtype, n: int, k: int) -> None:
        weight, bias = random(dtype, n, k, seed=1), random(dtype, n, seed=2)
        linear = pack(weight, bias)
        assert (linear.in_features, linear.out_features) == (k, n)
        for m in (1, 5, 17):
            x = random(dtype, m, k, seed=m)
            expected = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
            out, logits = empty(dtype, m, n), np.empty((m, n), np.float32)
            linear.forward(to_numpy(x), out)
            linear.forward_f32(to_numpy(x), logits)
            torch.testing.assert_close(
                to_torch(out).float(), expected, rtol=TOLERANCE[dtype], atol=1e-4
            )
            torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_fused_forms_match_torch(self, dtype: torch.dtype) -> None:
        n, k, m = 80, 48, 6
        weight, x, norm = (
            random(dtype, n, k, seed=1),
            random(dtype, m, k, seed=2),
            random(dtype, k, seed=3),
        )
        gate_up, residual = random(dtype, m, 2 * k, seed=4), random(dtype, m, n, seed=5)
        linear = pack(weight)
        tolerance = {"rtol": TOLERANCE[dtype], "atol": 5e-2 if dtype == torch.bfloat16 else 1e-4}

        expected = rms_norm(x, norm, 1e-5).float() @ weight.float().T
        out, logits = empty(dtype, m, n), np.empty((m, n), np.float32)
        linear.forward_norm(to_numpy(x), to_numpy(norm), 1e-5, out)
        linear.forward_norm_f32(to_numpy(x), to_numpy(norm), 1e-5, logits)
        torch.testing.assert_close(to_torch(out).float(), expected, **tolerance)
        torch.testing.assert_close(torch.from_numpy(logits), expected, **tolerance)

        sums = to_numpy(residual.clone())
        linear.forward_add(to_numpy(x), sums)
        expected = residual.float() + x.float() @ weight.float().T
        torch.testing.assert_close(to_torch(sums).float(), expected, **tolerance)

        sums = to_numpy(residual.clone())
        linear.forward_silu_add(to_numpy(gate_up), sums)
        gate, up = gate_up.chunk(2, dim=-1)
        expected = residual.float() + (torch.nn.functional.silu(gate) * up).float() @ (
            weight.float().T
        )
        torch.testing.assert_close(to_torch(sums).float(), expected, **tolerance)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_row_keeps_its_bits(self, dtype: torch.dtype) -> None:
        n, k, most = 200, 72, 40
        linear = pack(random(dtype, n, k, seed=1))
        x = to_numpy(random(dtype, most, k, seed=2))
        _core.set_num_threads(1)
        alone = empty(dtype, most, n)
        for row in range(most):
            linear.forward(x[row : row + 1], alone[row : row + 1])
        for m in range(1, most + 1):
            _core.set_num_threads(1 + m % 3)
            out = empty(dtype, m, n)
            linear.forward(x[most - m :], out)
            assert np.array_equal(out.view(np.uint8), alone[most - m :].view(np.uint8)), m

    def test_wrong_arguments_are_refused(self) -> None:
        linear = pack(random(torch.float32, 4, 3))
        x, out = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
        with pytest.raises(ValueError, match=r"x has shape \[2, 4\], not \[\*, 3\]"):
            linear.forward(out, out)
        with pytest.raises(ValueError, match=r"out has shape \[2, 3\], not \[2, 4\]"):
            linear.forward(x, np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match="x is not C-contiguous"):
            linear.forward(np.zeros((3, 2), np.float32).T, out)
        with pytest.raises(TypeError, match="x is not a numpy array of float32"):
            linear.forward(x.astype(np.uint16), out)
        with pytest.raises(ValueError, match="dtype is"):
            _core.PackedLinear(x, None, "float16")
        square = pack(random(torch.float32, 3, 3))
        with pytest.raises(ValueError, match="shares memory"):
            square.forward(x, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_matches_torch(dtype: torch.dtype) -> None:
    for k in (64, 50, 3):
        x, weight = random(dtype, 20, k, seed=k), random(dtype, k, seed=k + 1)
        out = empty(dtype, 20, k)
        _core.rms_norm(to_numpy(x), to_numpy(weight), 1e-6, out)
        torch.testing.assert_close(
            to_torch(out), rms_norm(x, weight, 1e-6), rtol=TOLERANCE[dtype] / 2, atol=1e-6
        )


@dataclass
class Paged:
    """A paged cache with rows that go through `attention`, and what they are."""

    dtype: torch.dtype
    heads: int = 6
    kv_heads: int = 2
    dim: int = 32
    block: int = 16
    blocks: int = 12
    norms: bool = False
    key_start: int = 0

    def __post_init__(self) -> None:
        self.k = to_numpy(
            random(self.dtype, self.blocks, self.kv_heads, self.dim, self.block, seed=8) * 50
        )
        self.v = to_numpy(
            random(self.dtype, self.blocks, self.kv_heads, self.block, self.dim, seed=9) * 50
        )
        frequencies = 1e4 ** (-torch.arange(0, self.dim, 2) / self.dim)
        angles = torch.outer(torch.arange(256.0), frequencies)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.q_norm = random(self.dtype, self.dim, seed=6) if self.norms else None
        self.k_norm = random(self.dtype, self.dim, seed=7) if self.norms else None

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim

    def run(
        self,
        qkv: torch.Tensor,
        context: list[int],
        tables: list[list[int]],
        parents: list[list[int]],
        positions: list[int] | None = None,
    ) -> torch.Tensor:
        """Rows of one or more requests in one call; positions follow the parents."""
        slots, where, starts = [], [], [0]
        for start, table, links in zip(context, tables, parents, strict=True):
            depth: list[int] = []
            for i, parent in enumerate(links):
                depth.append(depth[parent] + 1 if 0 <= parent < i else 0)
                slots.append(
                    table[(start + i) // self.block] * self.block + (start + i) % self.block
                )
                where.append(start + depth[-1])
            starts.append(starts[-1] + len(links))
        out = empty(self.dtype, len(slots), self.heads * self.dim)
        ints = [
            positions or where,
            slots,
            starts,
            context,
            tables,
            functools.reduce(operator.iadd, parents, []),
        ]
        _core.attention(
            to_numpy(qkv),
            out,
            self.k,
            self.v,
            *(np.array(x, np.int32) for x in ints),
            self.cos.numpy(),
            self.sin.numpy(),
            None if self.q_norm is None else to_numpy(self.q_norm),
            None if self.k_norm is None else to_numpy(self.k_norm),
            1e-6,
            self.heads,
            self.kv_heads,
            self.key_start,
            self.dim**-0.5,
        )
        return to_torch(out)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T, heads, D], as Hugging Face does it."""
        cos, sin = (
            torch.cat([t[positions]] * 2, -1).to(self.dtype)[:, None] for t in (self.cos, self.sin)
        )
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def expected(self, qkv: torch.Tensor, path: list[int], positions: list[int]) -> torch.Tensor:
        """Attention of the last row of `path` to the rows of `path`, by torch."""
        heads = (self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = (
            qkv[path].view(-1, *heads).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        )
        if self.norms:
            assert self.q_norm is not None
            assert self.k_norm is not None
            q, k = rms_norm(q, self.q_norm, 1e-6), rms_norm(k, self.k_norm, 1e-6)
        where = torch.tensor([positions[row] for row in path])
        q, k = (self.rotate(x, where).float() for x in (q, k))
        group = self.heads // self.kv_heads
        k, v = (x.float().repeat_interleave(group, dim=1)[self.key_start :] for x in (k, v))
        scores = torch.einsum("hd,thd->ht", q[-1], k) * self.dim**-0.5
        return torch.einsum("ht,thd->hd", scores.softmax(-1), v).flatten()


def chain(length: int) -> list[int]:
    return list(range(-1, length - 1))


TREE = [-1, -1, 0, 0, 1, 2, 4, 4, 5]
"""Parents of nodes that hang on row 0 of a window; see `window`."""


def window(tree: list[int]) -> list[int]:
    """A window: the last committed token, then the tree below it."""
    return [-1] + [parent + 1 for parent in tree]


def path_to(parents: list[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize("dtype", DTYPES)
class TestAttention:
    @pytest.mark.parametrize("dim", [16, 24, 32, 64, 80, 128])
    @pytest.mark.parametrize(("heads", "kv_heads", "norms"), [(6, 2, False), (4, 4, True)])
    def test_chain_matches_torch(
        self, dtype: torch.dtype, dim: int, heads: int, kv_heads: int, norms: bool
    ) -> None:
        paged = Paged(dtype, heads=heads, kv_heads=kv_heads, dim=dim, norms=norms)
        qkv = random(dtype, 40, paged.width)
        out = paged.run(qkv, [0], [[7, 2, 9]], [chain(40)])
        for row in (0, 1, 15, 16, 17, 31, 39):
            expected = paged.expected(qkv, list(range(row + 1)), list(range(40)))
            torch.testing.assert_close(
                out[row].float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 2
            )

    @pytest.mark.parametrize("context", [0, 5, 13, 16, 30])
    @pytest.mark.parametrize("key_start", [0, 1])
    def test_tree_rows_have_the_bits_of_chains(
        self, dtype: torch.dtype, context: int, key_start: int
    ) -> None:
        paged = Paged(dtype, key_start=key_start)
        context = max(context, key_start)
        parents = window(TREE)
        qkv = random(dtype, context + len(parents), paged.width, seed=context)
        table = [3, 1, 8]
        if context:
            paged.run(qkv[:context], [0], [table], [chain(context)])
        out = paged.run(qkv[context:], [context], [table], [parents])
        for row in range(len(parents)):
            path = [*range(context), *(context + r for r in path_to(parents, row))]
            alone = Paged(dtype, key_start=key_start).run(
                qkv[path], [0], [[5, 6, 4]], [chain(len(path))]
            )
            assert torch.equal(out[row].view(torch.uint8), alone[-1].view(torch.uint8)), row

    def test_chunks_neighbours_and_threads_do_not_matter(self, dtype: torch.dtype) -> None:
        qkv = random(dtype, 60, Paged(dtype).width)
        _core.set_num_threads(1)
        whole = Paged(dtype).run(qkv, [0], [[0, 1, 2, 3]], [chain(60)])
        other = random(dtype, 60, Paged(dtype).width, seed=3)
        for threads, chunk in ((1, 1), (2, 7), (3, 16), (2, 33)):
            _core.set_num_threads(threads)
            paged, parts = Paged(dtype, block=32), []
            for start in range(0, 60, chunk):
                size = min(chunk, 60 - start)
                rows = torch.cat([other[: size // 2], qkv[start : start + size]])
                context, tables = [start, start], [[1, 7], [9, 2]]
                links = [chain(size // 2), chain(size)]
                out = paged.run(rows, context, tables, links)
                parts.append(out[size // 2 :])
            assert torch.equal(torch.cat(parts).view(torch.uint8), whole.view(torch.uint8))

    def test_copied_slots_are_the_same_keys(self, dtype: torch.dtype) -> None:
        qkv = random(dtype, 30, Paged(dtype).width)
        paged = Paged(dtype)
        paged.run(qkv[:29], [0], [[4, 5]], [chain(29)])
        expected = paged.run(qkv[29:], [29], [[4, 5]], [[-1]])
        here = np.arange(30, dtype=np.int32) + 4 * 16
        _core.copy_slots(paged.k, paged.v, here, here - 3 * 16)
        assert torch.equal(paged.run(qkv[29:], [29], [[1, 2]], [[-1]]), expected)

    def test_wrong_arguments_are_refused(self, dtype: torch.dtype) -> None:
        paged = Paged(dtype)
        qkv = random(dtype, 2, paged.width)
        with pytest.raises(ValueError, match="parents"):
            paged.run(qkv, [0], [[0]], [[-1, 1]], positions=[0, 1])
        with pytest.raises(ValueError, match=r"block_tables\[0\] is 12, outside 0..12"):
            paged.run(qkv, [0], [[12]], [[-1, 0]])
        with pytest.raises(ValueError, match=r"positions\[1\] is 256, outside 0..256"):
            paged.run(qkv, [0], [[0]], [[-1, 0]], positions=[0, 256])
        with pytest.raises(ValueError, match="qkv has shape"):
            paged.run(qkv[:1], [0], [[0]], [[-1, 0]])
        with pytest.raises(ValueError, match=r"outside 0..192"):
            _core.copy_slots(paged.k, paged.v, np.array([0], np.int32), np.array([192], np.int32))


def test_level_and_threads() -> None:
    assert _core.simd_level() in {"avx512_bf16", "avx512", "avx2", "baseline"}
    _core.set_num_threads(3)
    assert _core.num_threads() == 3
    with pytest.raises(ValueError, match="threads"):
        _core.set_num_threads(0)
