"""Writes a trained head as a folder in the vLLM parallel-drafting layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import nn

from peagle.files import make_folder, write_atomically
from peagle.heads.transition import TRANSITION_FILE
from peagle.models.config import RopeConfig
from peagle.train.module import HeadShape, TrainableHead
from peagle.train.transition import TransitionTable


@dataclass(frozen=True)
class Provenance:
    """What a head was trained on."""

    target_sha256: str
    chat_template_sha256: str | None
    taps: tuple[int, ...]
    k_train: int
    train_max_len: int
    mask_token_id: int
    vocab_size: int


def export_head(
    folder: Path,
    head: TrainableHead,
    transition: TransitionTable | None,
    target_ids: npt.NDArray[np.int64],
    provenance: Provenance,
) -> None:
    """Writes `config.json`, `model.safetensors` and `transition.safetensors` (bfloat16).

    Embeddings are left out: loaders then take the target's, which is what training saw.

    Args:
        target_ids: [draft_vocab_size] ascending target ids of the draft ids.
    """
    make_folder(folder)
    tensors = _bfloat16(head)
    tensors["d2t"] = torch.from_numpy(target_ids - np.arange(len(target_ids)))
    write_atomically(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    config = head_config(head.shape, provenance)
    if transition is not None:
        write_atomically(folder / TRANSITION_FILE, save(_bfloat16(transition), {"format": "pt"}))
        config["peagle"]["transition_rank"] = transition.before.shape[1]
    text = json.dumps(config, indent=2) + "\n"
    write_atomically(folder / "config.json", text.encode())


def _bfloat16(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.to(torch.bfloat16).contiguous() for name, t in module.state_dict().items()}


def head_config(shape: HeadShape, provenance: Provenance) -> dict[str, Any]:
    """`config.json` with vLLM's keys and our own under `peagle`."""
    taps = list(provenance.taps)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.attention.num_heads,
        "num_key_value_heads": shape.attention.num_kv_heads,
        "head_dim": shape.attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        **_rope_keys(shape.rope),
        "max_position_embeddings": provenance.train_max_len,
        "vocab_size": provenance.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.hidden_size,
        "ptd_token_id": provenance.mask_token_id,
        "norm_before_residual": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": taps},
        "peagle": {
            "k_train": provenance.k_train,
            "train_max_len": provenance.train_max_len,
            "taps": taps,
            "target_sha256": provenance.target_sha256,
            "chat_template_sha256": provenance.chat_template_sha256,
        },
    }


def _rope_keys(rope: RopeConfig) -> dict[str, Any]:
    if rope.kind == "default":
        return {"rope_theta": rope.theta}
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    return {"rope_theta": rope.theta, "rope_scaling": scaling}
