"""The P-EAGLE head as a differentiable module, under the tensor names of the vLLM layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from peagle.models.config import AttentionConfig, RopeConfig
from peagle.models.weights import WeightReader


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head to be trained; it shares the target's width and attention shape."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    attention: AttentionConfig
    rope: RopeConfig
    rms_norm_eps: float
    num_taps: int
    draft_vocab_size: int


class Norm(nn.Module):
    """RMSNorm in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with rotate-half RoPE under an arbitrary mask."""

    def __init__(self, config: AttentionConfig, input_size: int, output_size: int) -> None:
        super().__init__()
        self.config = config
        kv_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, config.output_size, bias=False)
        self.k_proj = nn.Linear(input_size, kv_size, bias=False)
        self.v_proj = nn.Linear(input_size, kv_size, bias=False)
        self.o_proj = nn.Linear(config.output_size, output_size, bias=False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        batch, rows, _ = x.shape
        dim = self.config.head_dim
        q, k, v = (
            project(x).view(batch, rows, -1, dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        groups = self.config.num_heads // self.config.num_kv_heads
        out = F.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), attn_mask=mask
        )
        result: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))
        return result


class Mlp(nn.Module):
    """Gated SiLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """A decoder layer; the first one of a head reads [norm(embedding) ; norm(hidden)]."""

    def __init__(self, shape: HeadShape, *, fused_input: bool) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = Norm(size, eps)
        if fused_input:
            self.hidden_norm = Norm(size, eps)
        self.self_attn = Attention(shape.attention, size * (2 if fused_input else 1), size)
        self.post_attention_layernorm = Norm(size, eps)
        self.mlp = Mlp(size, shape.intermediate_size)

    def forward(
        self,
        hidden: torch.Tensor,
        embedded: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        if embedded is None:
            normed = self.input_layernorm(hidden)
        else:
            normed = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(normed, cos, sin, mask)
        result: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class TrainableHead(nn.Module):
    """A head whose embeddings are the target's and stay as they are.

    `mask_hidden` is learned; the mask token's embedding is a frozen row of the target's table, so
    an export without embeddings loses nothing.
    """

    inverse_frequencies: torch.Tensor

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.num_taps * shape.hidden_size
        self.fc = nn.Linear(width, shape.hidden_size, bias=False)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, width))
        self.midlayer = Layer(shape, fused_input=True)
        # The vLLM layout numbers the other layers from 1.
        self.layers = nn.ModuleDict(
            {str(i): Layer(shape, fused_input=False) for i in range(1, shape.num_layers)}
        )
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        frequencies = shape.rope.inverse_frequencies(shape.attention.head_dim)
        self.register_buffer("inverse_frequencies", torch.tensor(frequencies), persistent=False)

    def forward(
        self,
        taps: torch.Tensor,
        embedded: torch.Tensor,
        anchors: torch.Tensor,
        depths: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Final hidden states (before the LM head) of B sequences of N elements.

        Args:
            taps: [B, L, num_taps * hidden_size] of the sequences' tokens.
            embedded: [B, N, hidden_size] embeddings of the elements.
            anchors: [B, N] int64; -1 is padding.
            depths: [B, N] int64; past depth 0 the hidden half is `mask_hidden`.
            mask: [B, 1, N, N] bool.

        Returns:
            [B, N, hidden_size], normed.
        """
        index = anchors.clamp(min=0)[..., None].expand(-1, -1, self.shape.hidden_size)
        projected = torch.gather(self.fc(taps), 1, index)
        hidden = torch.where(depths[..., None] > 0, self.fc(self.mask_hidden), projected).float()
        angles = (anchors + depths)[:, None, :, None].float() * self.inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        hidden = self.midlayer(hidden, embedded, cos, sin, mask)
        for layer in self.layers.values():
            hidden = layer(hidden, None, cos, sin, mask)
        result: torch.Tensor = self.norm(hidden)
        return result

    @torch.no_grad()
    def start_from_target(self, reader: WeightReader, num_target_layers: int) -> None:
        """Starts from the target: its last layers and norm, with `fc` passing the last tap on.

        The LM head is set by the caller, who knows the draft vocabulary.
        """
        size = self.shape.hidden_size
        self.fc.weight.zero_()
        self.fc.weight[:, -size:] = torch.eye(size)
        first = num_target_layers - self.shape.num_layers
        for index, layer in enumerate([self.midlayer, *self.layers.values()]):
            source = f"layers.{first + index}"
            for name, parameter in layer.named_parameters():
                stored = name.replace("hidden_norm", "input_layernorm")
                if index == 0 and name.startswith("input_layernorm"):
                    continue
                shape = reader.shape(f"{source}.{stored}")
                tensor = reader.take(f"{source}.{stored}", shape, torch.float32)
                if tensor.shape == parameter.shape:
                    parameter.copy_(tensor)
                else:  # q, k, v of the first layer: [embedding half ; hidden half]
                    parameter[:, size:] = tensor
                    parameter[:, :size].mul_(0.5)
        self.norm.weight.copy_(reader.take("norm.weight", (size,), torch.float32))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    return rotated.to(x.dtype)
