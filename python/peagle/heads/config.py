"""Head configuration: both published layouts in, one strict dataclass out.

Layout A is vLLM's parallel-drafting layout (flat keys, `ptd_token_id`); layout B is that of
`speculators` (`transformer_layer_config`, `mask_token_id`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.errors import ConfigError
from peagle.models.config import (
    AttentionConfig,
    RopeConfig,
    attention_config,
    positive,
    read_json,
)

# In the order in which vLLM 0.32 looks for them (v1/spec_decode/llm_base_proposer.py).
MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


@dataclass(frozen=True)
class HeadConfig:
    """Everything a P-EAGLE head needs besides its weights."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    """Fused first layer included."""
    attention: AttentionConfig
    mlp_bias: bool
    rope: RopeConfig
    rms_norm_eps: float
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    mask_token_id: int
    taps: tuple[int, ...] | None
    """Target layers whose input is read, ascending; `None` means the target's default."""
    num_taps: int
    norm_before_residual: bool
    norm_before_fc: bool
    """One RMSNorm over all taps before `fc`."""
    fc_norm: bool
    """One RMSNorm for each tap before `fc`."""
    k_train: int | None
    train_max_len: int | None
    chat_template_sha256: str | None

    @classmethod
    def from_folder(cls, folder: Path) -> HeadConfig:
        """Reads `config.json` of a head folder in either layout.

        Raises:
            ConfigError: a key is missing or unusable; the message names it.
        """
        source = str(folder / "config.json")
        config = read_json(folder / "config.json")
        layer = config.get("transformer_layer_config") or config
        family = "qwen3" if layer.get("model_type") == "qwen3" else "llama"
        hidden = int(positive(layer, "hidden_size", source))
        heads = int(positive(layer, "num_attention_heads", source))
        taps = _taps(config, source)
        scale = config.get("logit_scale", 1.0)
        if not isinstance(scale, int | float) or not scale > 0:
            raise ConfigError(f"{source}: logit_scale is {scale!r}, expected a positive number")
        nested = config.get("eagle_config") or {}
        ours = config.get("peagle") or {}
        vocab = int(positive(layer, "vocab_size", source))
        return cls(
            hidden_size=hidden,
            intermediate_size=int(positive(layer, "intermediate_size", source)),
            num_layers=int(positive(layer, "num_hidden_layers", source)),
            attention=attention_config(layer, family, hidden, heads, source),
            mlp_bias=bool(layer.get("mlp_bias", False)),
            rope=RopeConfig.from_config(layer, source),
            rms_norm_eps=positive(layer, "rms_norm_eps", source),
            target_hidden_size=int(config.get("target_hidden_size") or hidden),
            vocab_size=vocab,
            draft_vocab_size=int(config.get("draft_vocab_size") or vocab),
            mask_token_id=_mask_token(config, source),
            taps=taps,
            num_taps=len(taps) if taps else int(config.get("num_aux_hidden_states") or 3),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            norm_before_fc=bool(config.get("norm_before_fc", nested.get("norm_before_fc", False))),
            fc_norm=bool(config.get("fc_norm", False)),
            k_train=ours.get("k_train"),
            train_max_len=ours.get("train_max_len"),
            chat_template_sha256=ours.get("chat_template_sha256"),
        )


def _taps(config: Mapping[str, Any], source: str) -> tuple[int, ...] | None:
    """Tap ids, ascending and without repeats, as vLLM treats them."""
    ours = config.get("peagle") or {}
    nested = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    found = nested.get(key) or config.get(key) or ours.get("taps")
    if not found:
        return None
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
        raise ConfigError(f"{source}: {key} is {found!r}, expected layer indices >= 0")
    return tuple(sorted(set(found)))


def _mask_token(config: Mapping[str, Any], source: str) -> int:
    for key in MASK_TOKEN_KEYS:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{source}: {key} is {value!r}, expected a token id >= 0")
        return value
    raise ConfigError(
        f"{source}: no mask token id under {', '.join(MASK_TOKEN_KEYS)}",
        hint="this looks like an EAGLE-3 head; P-EAGLE heads name the token of their mask rows",
    )
