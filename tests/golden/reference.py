"""Plain torch reference of P-EAGLE drafting: no cache, no batching, nothing shared with `peagle`.

Everything is recomputed from the token ids each time, in float32, with one dense attention mask.
It is slow and meant to be read; the product is tested against it. Sources: arXiv 2602.01469
(sections 3 and 4) for the method, arXiv 2503.01840 (EAGLE-3) for the fused first layer. Both
checkpoint layouts are read: `midlayer.*` with flat config keys, and `layers.0.*` with a
`transformer_layer_config` (speculators).

Words: a *row* is one drafter input; row j holds the embedding of token t_{j+1} and the hidden
state of position j; a *tap* is the residual stream entering one decoder layer of the target.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

Weights = dict[str, Tensor]


def read_weights(folder: Path) -> Weights:
    """All tensors of `model.safetensors`; floating ones as float32."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` with the keys of a nested `transformer_layer_config` lifted to the top."""
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {**raw.get("transformer_layer_config", {}), **raw}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis."""
    scaled: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return scaled * weight


def rotary_frequencies(config: dict[str, Any]) -> Tensor:
    """Inverse frequencies [head_dim/2]; `llama3` scaling stretches the slow ones."""
    head_dim = config["head_dim"]
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = float(config.get("rope_theta", scaling.get("rope_theta", 10000.0)))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = torch.pow(theta, -exponents)
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return frequencies
    if kind != "llama3":
        raise ValueError(f"rope type {kind!r} is not in the reference")
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = frequencies * (kept + (1 - kept) / scaling["factor"])
    return scaled


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate-half RoPE of x [..., heads, rows, head_dim] at positions [rows]."""
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x W^T (+ b when the checkpoint has one)."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def attention(
    weights: Weights,
    prefix: str,
    config: dict[str, Any],
    x: Tensor,
    positions: Tensor,
    visible: Tensor,
) -> Tensor:
    """Grouped-query attention of x [..., rows, width]; `visible` [rows, rows] is row x key."""
    head_dim = config["head_dim"]
    frequencies = rotary_frequencies(config)

    def heads(name: str) -> Tensor:
        projected = linear(weights, f"{prefix}.{name}_proj", x)
        return projected.reshape(*x.shape[:-1], -1, head_dim).transpose(-3, -2)

    query, key, value = heads("q"), heads("k"), heads("v")
    if f"{prefix}.q_norm.weight" in weights:
        query = rms_norm(query, weights[f"{prefix}.q_norm.weight"], config["rms_norm_eps"])
        key = rms_norm(key, weights[f"{prefix}.k_norm.weight"], config["rms_norm_eps"])
    query, key = rotate(query, positions, frequencies), rotate(key, positions, frequencies)
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    key, value = key.repeat_interleave(group, dim=-3), value.repeat_interleave(group, dim=-3)
    scores = query @ key.transpose(-1, -2) / math.sqrt(head_dim)
    probs = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    mixed = (probs @ value).transpose(-3, -2).flatten(-2)
    return linear(weights, f"{prefix}.o_proj", mixed)


def mlp(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """SiLU-gated feed-forward."""
    gate, up = linear(weights, f"{prefix}.gate_proj", x), linear(weights, f"{prefix}.up_proj", x)
    return linear(weights, f"{prefix}.down_proj", F.silu(gate) * up)


def decoder_layer(
    weights: Weights,
    prefix: str,
    config: dict[str, Any],
    residual: Tensor,
    attention_input: Tensor,
    positions: Tensor,
    visible: Tensor,
) -> Tensor:
    """Pre-norm decoder layer; the attention input is already normed. Returns the new residual."""
    residual = residual + attention(
        weights, f"{prefix}.self_attn", config, attention_input, positions, visible
    )
    normed = rms_norm(
        residual, weights[f"{prefix}.post_attention_layernorm.weight"], config["rms_norm_eps"]
    )
    return residual + mlp(weights, f"{prefix}.mlp", normed)


def causal(rows: int) -> Tensor:
    """Lower-triangular mask [rows, rows]."""
    return torch.ones(rows, rows, dtype=torch.bool).tril()


@dataclass(frozen=True)
class Target:
    """A Llama-like (or Qwen3-like) decoder in the usual Hugging Face layout."""

    config: dict[str, Any]
    weights: Weights

    @staticmethod
    def load(folder: str | Path) -> "Target":
        """Read `config.json` and `model.safetensors` of `folder`."""
        return Target(read_config(Path(folder)), read_weights(Path(folder)))

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return int(self.config["num_hidden_layers"])

    @property
    def embedding(self) -> Tensor:
        """Token embedding [vocab, hidden]."""
        return self.weights["model.embed_tokens.weight"]

    @property
    def unembedding(self) -> Tensor:
        """Output projection [vocab, hidden], tied to the embedding when absent."""
        return self.weights.get("lm_head.weight", self.embedding)

    def forward(self, token_ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits [..., n, vocab] and the residual stream entering each layer (one per layer)."""
        x, config = self.embedding[token_ids], self.config
        positions, visible = torch.arange(token_ids.shape[-1]), causal(token_ids.shape[-1])
        entering = []
        for index in range(self.num_layers):
            entering.append(x)
            prefix = f"model.layers.{index}"
            norm = self.weights[f"{prefix}.input_layernorm.weight"]
            normed = rms_norm(x, norm, config["rms_norm_eps"])
            x = decoder_layer(self.weights, prefix, config, x, normed, positions, visible)
        x = rms_norm(x, self.weights["model.norm.weight"], config["rms_norm_eps"])
        return F.linear(x, self.unembedding), entering

    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        """The next `count` tokens by argmax (ties to the lowest id)."""
        tokens = list(token_ids)
        for _ in range(count):
            logits, _ = self.forward(torch.tensor(tokens))
            tokens.append(int(logits[-1].argmax()))
        return tokens[len(token_ids) :]


@dataclass(frozen=True)
class Head:
    """A P-EAGLE head, whatever layout it came in."""

    config: dict[str, Any]
    weights: Weights

    @staticmethod
    def load(folder: str | Path) -> "Head":
        """Read either layout; `midlayer.` becomes `layers.0.`."""
        weights = {
            name.replace("midlayer.", "layers.0."): tensor
            for name, tensor in read_weights(Path(folder)).items()
        }
        return Head(read_config(Path(folder)), weights)

    @property
    def mask_token_id(self) -> int:
        """The reserved id whose embedding fills the rows of depth >= 1."""
        for key in ("mask_token_id", "pard_token", "ptd_token_id"):
            if self.config.get(key) is not None:
                return int(self.config[key])
        raise ValueError("the head names no mask token id")

    def taps(self, num_layers: int) -> list[int]:
        """Layer indices whose entering residual stream is read, ascending."""
        ids = (self.config.get("eagle_config") or {}).get(
            "eagle_aux_hidden_state_layer_ids"
        ) or self.config.get("eagle_aux_hidden_state_layer_ids")
        return sorted(set(ids or (2, num_layers // 2, num_layers - 3)))

    def combine(self, tapped: Tensor) -> Tensor:
        """fc of the concatenated taps [..., taps * target hidden], with its optional norms."""
        eps = self.config["rms_norm_eps"]
        if "input_norm.weight" in self.weights:
            tapped = rms_norm(tapped, self.weights["input_norm.weight"], eps)
        if "fc_norm.0.weight" in self.weights:
            width = self.weights["fc_norm.0.weight"].numel()
            chunks = tapped.chunk(tapped.shape[-1] // width, dim=-1)
            normed = [
                rms_norm(chunk, self.weights[f"fc_norm.{index}.weight"], eps)
                for index, chunk in enumerate(chunks)
            ]
            tapped = torch.cat(normed, dim=-1)
        return linear(self.weights, "fc", tapped)

    def forward(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """Final-normed states [..., rows, hidden] of rows given as embeddings and fc outputs."""
        config, weights = self.config, self.weights
        eps = config["rms_norm_eps"]
        normed = rms_norm(hidden, weights["layers.0.hidden_norm.weight"], eps)
        first = rms_norm(embedded, weights["layers.0.input_layernorm.weight"], eps)
        residual = normed if config.get("norm_before_residual", False) else hidden
        x = decoder_layer(
            weights,
            "layers.0",
            config,
            residual,
            torch.cat([first, normed], dim=-1),
            positions,
            visible,
        )
        for index in range(1, config["num_hidden_layers"]):
            prefix = f"layers.{index}"
            normed = rms_norm(x, weights[f"{prefix}.input_layernorm.weight"], eps)
            x = decoder_layer(weights, prefix, config, x, normed, positions, visible)
        return rms_norm(x, weights["norm.weight"], eps)


def draft_logits(target: Target, head: Head, token_ids: list[int], k: int) -> Tensor:
    """Logits [k, draft vocabulary] for the k tokens that follow the committed `token_ids`.

    The newest committed token has no hidden state yet, so row j < len - 1 pairs t_{j+1} with
    the hidden state of position j, at RoPE position j; k - 1 mask rows follow; the last real
    row and the mask rows give the logits. At least two committed tokens are needed.
    """
    if len(token_ids) < 2:
        raise ValueError(f"drafting needs two committed tokens, got {len(token_ids)}")
    embedding = head.weights.get("embed_tokens.weight", target.embedding)
    unembedding = head.weights.get("lm_head.weight", target.unembedding)
    _, entering = target.forward(torch.tensor(token_ids[:-1]))
    tapped = torch.cat([entering[index] for index in head.taps(target.num_layers)], dim=-1)
    masks = head.weights["mask_hidden"].reshape(1, -1).expand(k - 1, -1)
    hidden = head.combine(torch.cat([tapped, masks]))
    embedded = embedding[torch.tensor(token_ids[1:] + [head.mask_token_id] * (k - 1))]
    rows = embedded.shape[0]
    states = head.forward(embedded, hidden, torch.arange(rows), causal(rows))
    return F.linear(states[-k:], unembedding)


def to_target_ids(head: Head, draft_ids: Tensor) -> Tensor:
    """Target ids of draft ids: `d2t` holds offsets, absent means the same vocabulary."""
    return draft_ids + head.weights["d2t"][draft_ids] if "d2t" in head.weights else draft_ids


def reference_drafts(
    target_dir: str | Path, head_dir: str | Path, token_ids: list[int], k: int
) -> list[int]:
    """The k greedy drafts (target ids) after the committed `token_ids`."""
    target, head = Target.load(target_dir), Head.load(head_dir)
    with torch.inference_mode():
        best = draft_logits(target, head, token_ids, k).argmax(-1)
        return [int(token) for token in to_target_ids(head, best)]
