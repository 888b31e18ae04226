"""Head configuration: both published layouts in, one strict dataclass out.

Layout A is vLLM's parallel-drafting layout (flat keys, `ptd_token_id`); layout B is that of
`speculators` (`transformer_layer_config`, `mask_token_id`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.arguments import is_integer
from peagle.errors import ConfigError
from peagle.models.config import (
    AttentionConfig,
    RopeConfig,
    attention_config,
    count,
    positive,
    read_json,
    require_silu,
    section,
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
    """Depths it was trained for."""
    transition_rank: int | None
    """Of the transition table beside the weights; `None` without one."""
    target_sha256: str | None
    """`weights_digest` of the target it was trained for."""

    @classmethod
    def from_folder(cls, folder: Path) -> HeadConfig:
        """Reads `config.json` of a head folder in either layout.

        Raises:
            ConfigError: a key is missing or unusable; the message names it.
        """
        source = str(folder / "config.json")
        config = read_json(folder / "config.json")
        layer = section(config, "transformer_layer_config", source) or config
        require_silu(layer, source)
        family = "qwen3" if layer.get("model_type") == "qwen3" else "llama"
        hidden = count(layer, "hidden_size", source)
        vocab = count(layer, "vocab_size", source)
        taps = _taps(config, source)
        if config.get("logit_scale") is not None:
            positive(config, "logit_scale", source)  # scales every draft's logit alike
        nested = section(config, "eagle_config", source)
        ours = section(config, "peagle", source)
        trained_for = ours.get("target_sha256")
        if trained_for is not None and not isinstance(trained_for, str):
            raise ConfigError(f"{source}: target_sha256 is {trained_for!r}, expected a string")
        return cls(
            hidden_size=hidden,
            intermediate_size=count(layer, "intermediate_size", source),
            num_layers=count(layer, "num_hidden_layers", source),
            attention=attention_config(layer, family, source),
            mlp_bias=bool(layer.get("mlp_bias", False)),
            rope=RopeConfig.from_config(layer, source),
            rms_norm_eps=positive(layer, "rms_norm_eps", source),
            target_hidden_size=count(config, "target_hidden_size", source, default=hidden),
            vocab_size=vocab,
            draft_vocab_size=count(config, "draft_vocab_size", source, default=vocab),
            mask_token_id=_mask_token(config, source),
            taps=taps,
            num_taps=len(taps) if taps else count(config, "num_aux_hidden_states", source, 3),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            norm_before_fc=bool(config.get("norm_before_fc", nested.get("norm_before_fc", False))),
            fc_norm=bool(config.get("fc_norm", False)),
            k_train=_optional(ours, "k_train", source),
            transition_rank=_optional(ours, "transition_rank", source),
            target_sha256=trained_for or None,
        )


def _optional(ours: Mapping[str, Any], key: str, source: str) -> int | None:
    return count(ours, key, source) if key in ours else None


def _taps(config: Mapping[str, Any], source: str) -> tuple[int, ...] | None:
    """Tap ids, ascending and without repeats, as vLLM treats them."""
    key = "eagle_aux_hidden_state_layer_ids"
    nested, ours = section(config, "eagle_config", source), section(config, "peagle", source)
    found = nested.get(key) or config.get(key) or ours.get("taps")
    if not found:
        return None
    if not isinstance(found, list) or not all(is_integer(i, 0, 2**31 - 1) for i in found):
        raise ConfigError(f"{source}: {key} is {found!r}, expected a list of layer indices >= 0")
    return tuple(sorted(set(found)))


def _mask_token(config: Mapping[str, Any], source: str) -> int:
    for key in MASK_TOKEN_KEYS:
        value = config.get(key)
        if value is None:
            continue
        if not is_integer(value, 0, 2**31 - 1):
            raise ConfigError(f"{source}: {key} is {value!r}, expected a token id >= 0")
        return int(value)
    raise ConfigError(
        f"{source}: no mask token id under {', '.join(MASK_TOKEN_KEYS)}",
        hint="this looks like an EAGLE-3 head; P-EAGLE heads name the token of their mask rows",
    )
