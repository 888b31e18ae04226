"""The step functions trace as fixed-shape graphs that write KV in place: what CUDA graphs and
ahead-of-time compilers need.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.backends import TorchBackend
from peagle.backends.torch_ops import DenseBatch
from peagle.heads.peagle import PEagleHead
from peagle.models.batch import Batch, LayerCache
from peagle.models.llama import Decoder
from tests.tiny import make_head, make_target

BLOCK = 16
BUCKETS = [(1, 4, 2), (3, 8, 4)]
"""(requests, window width, blocks a request)"""
DATA_DEPENDENT = (".item", "nonzero", "_local_scalar_dense", "masked_select", "unique", "rand")


class TargetStep(torch.nn.Module):
    """The target's layers as a function of tensors."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, batch: tuple[torch.Tensor, ...], kv: list[torch.Tensor]) -> Any:
        return self.decoder.step(DenseBatch(*batch), caches(kv), self.decoder.default_taps())


class HeadStep(torch.nn.Module):
    """The head's layers as a function of tensors."""

    def __init__(self, head: PEagleHead) -> None:
        super().__init__()
        self.head = head

    def forward(
        self, batch: tuple[torch.Tensor, ...], kv: list[torch.Tensor], hidden: torch.Tensor
    ) -> Any:
        return self.head.step(DenseBatch(*batch), hidden.clone(), caches(kv))


def caches(kv: list[torch.Tensor]) -> list[LayerCache]:
    """Pairs of tensors as layer caches."""
    return [LayerCache(k, v) for k, v in zip(kv[::2], kv[1::2], strict=True)]


def bucket_batch(requests: int, width: int, blocks: int) -> Batch:
    """A full bucket: every request has the widest window behind nine slots of context."""
    rows = requests * width
    inner = np.tile(np.arange(width), requests)
    tables = np.arange(requests * blocks).reshape(requests, blocks)
    slots = tables[:, :1].repeat(width, 1).ravel() * BLOCK + 9 + inner
    return Batch(
        input_ids=np.arange(rows, dtype=np.int32),
        positions=(9 + inner).astype(np.int32),
        slots=slots.astype(np.int32),
        query_start=np.arange(0, rows + 1, width, dtype=np.int32),
        context_lens=np.full(requests, 9, np.int32),
        parents=(inner - 1).astype(np.int32),
        block_tables=tables.astype(np.int32),
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, PEagleHead]:
    """A tiny target and head in plain torch."""
    root: Path = tmp_path_factory.mktemp("models")
    make_target(root / "target")
    target = Decoder.load(root / "target", TorchBackend("cpu", torch.float32))
    return target, PEagleHead.load(make_head(root / "head"), target, max_position=128)


@pytest.mark.parametrize("bucket", BUCKETS, ids=str)
@pytest.mark.parametrize("which", ["target", "head"])
def test_a_step_traces_without_data_dependence_and_writes_kv_in_place(
    models: tuple[Decoder, PEagleHead], which: str, bucket: tuple[int, int, int]
) -> None:
    target, head = models
    batch = bucket_batch(*bucket)
    prepared = astuple(target.backend.prepare(batch, BLOCK))
    module: torch.nn.Module = TargetStep(target) if which == "target" else HeadStep(head)
    cache = (target if which == "target" else head).new_cache(bucket[0] * bucket[2], BLOCK)
    kv = [tensor for layer in cache for tensor in (layer.k, layer.v)]
    arguments: tuple[Any, ...] = (prepared, kv)
    if which == "head":
        arguments += (torch.randn(batch.num_rows, head.config.hidden_size),)
    expected = module(*arguments)
    program = torch.export.export(module, arguments, strict=False)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        assert not any(part in name for part in DATA_DEPENDENT), name
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            assert all(isinstance(size, int) for size in value.shape), name
    functional = program.run_decompositions({})
    mutated = set(functional.graph_signature.user_inputs_to_mutate.values())
    assert len(mutated) >= len(kv)
    for tensor in kv:
        tensor.zero_()
    found = program.module()(*arguments)
    torch.testing.assert_close(found, expected)
    assert all(tensor.any() for tensor in kv)
