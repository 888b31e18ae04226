"""Tiny random models on disk: real folders in the published formats, small enough for any test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

VOCAB = 97
HIDDEN = 64
MASK_TOKEN = 5

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "attention_bias": True,
        "mlp_bias": True,
    },
    "linear-rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "tied": {"tie_word_embeddings": True},
    "mistral": {"head_dim": 32, "sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
}


def transformers_config(family: str, **changes: Any) -> Any:
    """A tiny configuration of one family for `transformers`."""
    import transformers

    classes = {
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 112,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **FAMILIES[family],
        **changes,
    }
    return classes.get(family, transformers.LlamaConfig)(**settings)


def make_target(folder: Path, family: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """Writes a random model folder and returns the `transformers` model (float32, eval)."""
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers_config(family, **changes), attn_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                # Large enough that logits differ clearly and text does not collapse to one token.
                parameter.normal_(0.0, 1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5)
            elif "norm" in name:
                parameter.uniform_(0.6, 1.4)
            else:
                parameter.normal_(0.0, 0.1)
    model = model.float().eval()
    model.save_pretrained(folder)
    return model


def make_head(
    folder: Path,
    *,
    seed: int = 1,
    num_layers: int = 2,
    draft_vocab: int = 41,
    layout: str = "vllm",
    hidden: int = HIDDEN,
    vocab: int = VOCAB,
    with_embeddings: bool = True,
    config_changes: dict[str, Any] | None = None,
) -> Path:
    """Writes a random P-EAGLE head for `make_target`'s models, in either layout."""
    generator = torch.Generator().manual_seed(seed)
    heads, kv_heads, dim, inner = 4, 2, hidden // 4, 96

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 1.5 / columns**0.5

    def vector(size: int) -> torch.Tensor:
        return 0.6 + 0.8 * torch.rand(size, generator=generator)

    tensors: dict[str, torch.Tensor] = {
        "fc.weight": matrix(hidden, 3 * hidden),
        "mask_hidden": torch.randn(1, 1, 3 * hidden, generator=generator),
        "norm.weight": vector(hidden),
        "lm_head.weight": matrix(draft_vocab, hidden),
    }
    for index in range(num_layers):
        prefix = f"layers.{index}." if layout == "speculators" or index else "midlayer."
        width = hidden * (2 if index == 0 else 1)
        tensors |= {
            f"{prefix}input_layernorm.weight": vector(hidden),
            f"{prefix}post_attention_layernorm.weight": vector(hidden),
            f"{prefix}self_attn.q_proj.weight": matrix(heads * dim, width),
            f"{prefix}self_attn.k_proj.weight": matrix(kv_heads * dim, width),
            f"{prefix}self_attn.v_proj.weight": matrix(kv_heads * dim, width),
            f"{prefix}self_attn.o_proj.weight": matrix(hidden, heads * dim),
            f"{prefix}mlp.gate_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.up_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.down_proj.weight": matrix(hidden, inner),
        }
        if index == 0:
            tensors[f"{prefix}hidden_norm.weight"] = vector(hidden)
    if with_embeddings:
        tensors["embed_tokens.weight"] = torch.randn(vocab, hidden, generator=generator)
    if draft_vocab != vocab:
        chosen = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
        tensors["d2t"] = chosen - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True)
    layer = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
    }
    common = {"draft_vocab_size": draft_vocab, "target_hidden_size": hidden}
    if layout == "speculators":
        config = {
            "architectures": ["PEagleSpeculator"],
            "speculators_model_type": "peagle",
            "transformer_layer_config": layer,
            "mask_token_id": MASK_TOKEN,
            **common,
        }
    else:
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer,
            **common,
            "ptd_token_id": MASK_TOKEN,
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **(config_changes or {})}))
    return folder


def edit_head(folder: Path, edit: Any) -> None:
    """Rewrites a head's tensors: `edit` changes the dict in place."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes keys of `config.json`; a value of `None` removes the key."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def random_ids(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """Token ids, none of them the mask token."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab - 1, count)
    return [int(i) + (i >= MASK_TOKEN) for i in ids]
