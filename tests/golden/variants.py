"""Further heads, made from `head_vllm` by a rule: nothing to commit, the same bits everywhere.

`build(name, folder)` writes one. New tensors come from numpy's PCG64, whose stream is fixed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .make_models import HEAD_DIM, HERE, HIDDEN, save, speculators_config
from .reference import Weights, read_config, read_weights

Config = dict[str, Any]
Rule = Callable[[Config, Weights, "Source"], None]


class Source:
    """Deterministic new tensors, rounded to bfloat16."""

    def __init__(self, seed: int) -> None:
        """The stream of `seed`."""
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float) -> Tensor:
        """Normal values of standard deviation `scale`."""
        values = scale * self._rng.standard_normal(shape)
        return torch.from_numpy(values.astype(np.float32)).bfloat16().float()

    def norm(self, width: int) -> Tensor:
        """Norm weights in 0.5..1.5."""
        values = 0.5 + self._rng.random(width)
        return torch.from_numpy(values.astype(np.float32)).bfloat16().float()


def norm_before_residual(config: Config, _weights: Weights, _source: Source) -> None:
    """The normed fc output is the residual of layer 0."""
    config["norm_before_residual"] = True


def norm_before_fc(config: Config, weights: Weights, source: Source) -> None:
    """One RMSNorm over the concatenated taps."""
    config["norm_before_fc"] = True
    weights["input_norm.weight"] = source.norm(weights["fc.weight"].shape[1])


def fc_norm(config: Config, weights: Weights, source: Source) -> None:
    """One RMSNorm per tap."""
    config["fc_norm"] = True
    for index in range(3):
        weights[f"fc_norm.{index}.weight"] = source.norm(HIDDEN)


def one_layer(config: Config, weights: Weights, _source: Source) -> None:
    """Only the fused layer."""
    config["num_hidden_layers"] = 1
    for name in [name for name in weights if name.startswith("layers.1.")]:
        del weights[name]


def three_layers(config: Config, weights: Weights, source: Source) -> None:
    """A third layer that adds a little noise to the residual stream."""
    config["num_hidden_layers"] = 3
    for name in [name for name in weights if name.startswith("layers.1.")]:
        old = weights[name]
        new = source.norm(HIDDEN) if old.dim() == 1 else source.normal(*old.shape, scale=0.05)
        weights[name.replace("layers.1.", "layers.2.")] = new


def rope_llama3(config: Config, _weights: Weights, _source: Source) -> None:
    """Llama-3 frequency scaling, strong enough to act within a few tokens."""
    config["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def full_vocabulary(config: Config, weights: Weights, source: Source) -> None:
    """The draft vocabulary is the target's; no `d2t`."""
    own = weights["lm_head.weight"]
    draft_ids = torch.arange(len(own))
    full = source.normal(config["vocab_size"], HIDDEN, scale=0.05)
    full[draft_ids + weights["d2t"]] = own
    weights["lm_head.weight"] = full
    del weights["d2t"], weights["t2d"]
    config["draft_vocab_size"] = config["vocab_size"]


def shared_with_target(config: Config, weights: Weights, _source: Source) -> None:
    """Neither embedding nor lm_head in the file: the target's are used."""
    for name in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d"):
        del weights[name]
    config["draft_vocab_size"] = config["vocab_size"]


def three_other_taps(config: Config, weights: Weights, source: Source) -> None:
    """Taps named by the config, not in order."""
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [6, 1, 4]}
    weights["fc.weight"] = weights["fc.weight"] + source.normal(HIDDEN, 3 * HIDDEN, scale=0.01)


def four_taps(config: Config, weights: Weights, source: Source) -> None:
    """A fourth tap, before the others'."""
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 2, 3, 4]}
    weights["fc.weight"] = torch.cat(
        [source.normal(HIDDEN, HIDDEN, scale=0.02), weights["fc.weight"]], dim=1
    )
    weights["mask_hidden"] = torch.cat(
        [source.normal(1, 1, HIDDEN, scale=1.0), weights["mask_hidden"]], dim=-1
    )


def attention_bias(config: Config, weights: Weights, source: Source) -> None:
    """Biases on q, k, v and o."""
    config["attention_bias"] = True
    for layer in range(config["num_hidden_layers"]):
        for name in "qkvo":
            key = f"layers.{layer}.self_attn.{name}_proj"
            width = weights[f"{key}.weight"].shape[0]
            weights[f"{key}.bias"] = source.normal(width, scale=0.1)


def wider_than_target(config: Config, weights: Weights, source: Source) -> None:
    """A head of hidden size 96, all random: its width is not the target's."""
    wide = 96
    config["hidden_size"] = wide
    for name, old in list(weights.items()):
        if name in ("d2t", "t2d", "mask_hidden"):
            continue
        if old.dim() == 1:
            weights[name] = source.norm(wide)
            continue
        part, rows, columns = name.split(".")[-2], *old.shape
        if part in ("fc", "o_proj", "down_proj"):
            rows = wide
        elif part in ("q_proj", "k_proj", "v_proj") and name.startswith("layers.0."):
            columns = 2 * wide
        else:
            columns = wide
        weights[name] = source.normal(rows, columns, scale=columns**-0.5)


def qwen3_layers(config: Config, weights: Weights, source: Source) -> None:
    """Per-head RMSNorm of q and k before RoPE."""
    config["model_type"] = "qwen3"
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_norm", "k_norm"):
            weights[f"layers.{layer}.self_attn.{name}.weight"] = source.norm(HEAD_DIM)


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        norm_before_residual,
        norm_before_fc,
        fc_norm,
        one_layer,
        three_layers,
        rope_llama3,
        full_vocabulary,
        shared_with_target,
        three_other_taps,
        four_taps,
        attention_bias,
        wider_than_target,
        qwen3_layers,
    )
}
# Layout B is the only one in which the other engine meets Qwen3 layers.
SPECULATORS_ONLY = {"qwen3_layers"}


def build(name: str, folder: Path) -> Path:
    """Write variant `name` into `folder` and return it."""
    config = read_config(HERE / "head_vllm")
    weights = {
        key.replace("midlayer.", "layers.0."): tensor
        for key, tensor in read_weights(HERE / "head_vllm").items()
    }
    RULES[name](config, weights, Source(list(RULES).index(name)))
    if name in SPECULATORS_ONLY:
        save(folder, speculators_config(config), weights)
        return folder
    midlayer = {key.replace("layers.0.", "midlayer."): value for key, value in weights.items()}
    save(folder, config, midlayer)
    return folder
