"""The pre-norm decoder layer that targets and heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from peagle.backends.base import Array, Backend, HeadNorms, RopeTables
from peagle.models.batch import LayerCache
from peagle.models.config import AttentionConfig
from peagle.models.weights import WeightReader


@dataclass(frozen=True)
class DecoderLayer:
    """RMSNorm, attention, RMSNorm, gated SiLU MLP, with residuals; q/k/v and gate/up fused."""

    config: AttentionConfig
    eps: float
    qkv: Any
    output: Any
    gate_up: Any
    down: Any
    post_norm: Array
    head_norms: HeadNorms | None
    input_norm: Array | None
    """`None` in a head's first layer, which norms its two inputs itself."""

    @classmethod
    def load(
        cls,
        reader: WeightReader,
        prefix: str,
        backend: Backend,
        config: AttentionConfig,
        eps: float,
        *,
        hidden_size: int,
        intermediate_size: int,
        mlp_bias: bool,
        fused_input: bool = False,
    ) -> DecoderLayer:
        """Takes the tensors `prefix.*` from a checkpoint.

        Args:
            fused_input: the first layer of an EAGLE head, whose q/k/v read embedding and hidden
                side by side (width 2 x hidden_size) and which has no plain input norm.
        """
        dtype = backend.dtype
        head_dim = config.head_dim

        def vector(name: str, size: int) -> torch.Tensor:
            return reader.take(f"{prefix}.{name}", (size,), dtype)

        def linear(names: list[str], sizes: list[int], width: int, bias: bool) -> Any:
            weights = [
                reader.take(f"{prefix}.{name}.weight", (size, width), dtype)
                for name, size in zip(names, sizes, strict=True)
            ]
            biases = [
                vector(f"{name}.bias", size)
                for name, size in zip(names, sizes, strict=True)
                if bias
            ]
            return backend.pack(torch.cat(weights), torch.cat(biases) if bias else None)

        kv_size = config.num_kv_heads * head_dim
        q_size = config.output_size
        return cls(
            config=config,
            eps=eps,
            qkv=linear(
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                [q_size, kv_size, kv_size],
                hidden_size * (2 if fused_input else 1),
                config.qkv_bias,
            ),
            output=linear(["self_attn.o_proj"], [hidden_size], q_size, config.output_bias),
            gate_up=linear(
                ["mlp.gate_proj", "mlp.up_proj"], [intermediate_size] * 2, hidden_size, mlp_bias
            ),
            down=linear(["mlp.down_proj"], [hidden_size], intermediate_size, mlp_bias),
            post_norm=backend.array(vector("post_attention_layernorm.weight", hidden_size)),
            head_norms=HeadNorms(
                backend.array(vector("self_attn.q_norm.weight", head_dim)),
                backend.array(vector("self_attn.k_norm.weight", head_dim)),
            )
            if config.qk_norm
            else None,
            input_norm=None
            if fused_input
            else backend.array(vector("input_layernorm.weight", hidden_size)),
        )

    def forward_(
        self,
        hidden: Array,
        backend: Backend,
        cache: LayerCache,
        prepared: Any,
        rope: RopeTables,
        key_start: int,
    ) -> None:
        """Updates the residual stream `hidden` [T, hidden_size] in place."""
        qkv = backend.norm_linear(hidden, self.input_norm, self.eps, self.qkv)
        self.attend_(qkv, hidden, backend, cache, prepared, rope, key_start)

    def attend_(
        self,
        qkv: Array,
        residual: Array,
        backend: Backend,
        cache: LayerCache,
        prepared: Any,
        rope: RopeTables,
        key_start: int,
    ) -> None:
        """Everything after the q/k/v projection, into `residual`."""
        attended = backend.attention(
            qkv, cache, prepared, self.config, rope, self.head_norms, self.eps, key_start
        )
        backend.linear_add_(attended, self.output, residual)
        gate_up = backend.norm_linear(residual, self.post_norm, self.eps, self.gate_up)
        backend.silu_linear_add_(gate_up, self.down, residual)
