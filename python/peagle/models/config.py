"""Target configuration: Hugging Face `config.json` in, one strict dataclass out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.errors import ConfigError

SUPPORTED_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of a model.

    `kind` is `default`, `linear` (positions divided by `factor`) or `llama3` (frequency bands, as
    published with Llama 3.1). Other kinds are refused when the configuration is read.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    @classmethod
    def from_config(cls, config: Mapping[str, Any], source: str) -> RopeConfig:
        """Reads `rope_theta`/`rope_scaling` (classic) or `rope_parameters` (transformers 5)."""
        merged: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            merged.update(config.get(key) or {})
        theta = float(merged.get("rope_theta", config.get("rope_theta", 10000.0)))
        kind = merged.get("rope_type", merged.get("type", "default"))
        if kind == "default":
            return cls(theta=theta)
        if kind == "linear":
            return cls(theta=theta, kind=kind, factor=positive(merged, "factor", source))
        if kind == "llama3":
            return cls(
                theta=theta,
                kind=kind,
                factor=positive(merged, "factor", source),
                low_freq_factor=positive(merged, "low_freq_factor", source),
                high_freq_factor=positive(merged, "high_freq_factor", source),
                original_max_position=int(
                    positive(merged, "original_max_position_embeddings", source)
                ),
            )
        raise ConfigError(
            f"{source}: rope type {kind!r} is not supported",
            hint="supported rope types: default, linear, llama3",
        )

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """The `head_dim / 2` angular frequencies, in radians per position."""
        base = [self.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in base]
        if self.kind == "llama3":
            return [self._llama3_frequency(f) for f in base]
        return base

    def _llama3_frequency(self, frequency: float) -> float:
        wavelength = 2.0 * math.pi / frequency
        if wavelength < self.original_max_position / self.high_freq_factor:
            return frequency
        if wavelength > self.original_max_position / self.low_freq_factor:
            return frequency / self.factor
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1.0 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True)
class AttentionConfig:
    """What one attention layer needs to know."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    @property
    def qkv_size(self) -> int:
        """Width of the fused q, k, v projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def output_size(self) -> int:
        """Width of the concatenated heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class DecoderConfig:
    """A dense decoder: Llama, SmolLM, Mistral, Qwen2 or Qwen3."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    attention: AttentionConfig
    rope: RopeConfig
    rms_norm_eps: float
    max_position: int
    tie_word_embeddings: bool
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    @classmethod
    def from_folder(cls, folder: Path) -> DecoderConfig:
        """Reads `config.json` of a model folder.

        Raises:
            ConfigError: a key is missing or unusable, or the architecture is not supported.
        """
        return cls.from_dict(read_json(folder / "config.json"), str(folder / "config.json"))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], source: str) -> DecoderConfig:
        """Builds the configuration from parsed JSON; `source` names it in errors."""
        architectures = config.get("architectures") or []
        family = next(
            (SUPPORTED_ARCHITECTURES[a] for a in architectures if a in SUPPORTED_ARCHITECTURES),
            None,
        )
        if family is None:
            raise ConfigError(
                f"{source}: unsupported architecture {list(architectures)}",
                hint=f"supported: {', '.join(sorted(SUPPORTED_ARCHITECTURES))}",
            )
        if config.get("hidden_act", "silu") != "silu":
            raise ConfigError(
                f"{source}: hidden_act {config['hidden_act']!r} is not supported, expected 'silu'"
            )
        hidden = int(positive(config, "hidden_size", source))
        heads = int(positive(config, "num_attention_heads", source))
        return cls(
            family=family,
            vocab_size=int(positive(config, "vocab_size", source)),
            hidden_size=hidden,
            intermediate_size=int(positive(config, "intermediate_size", source)),
            num_layers=int(positive(config, "num_hidden_layers", source)),
            attention=attention_config(config, family, hidden, heads, source),
            rope=RopeConfig.from_config(config, source),
            rms_norm_eps=positive(config, "rms_norm_eps", source),
            max_position=_context_length(config, family, source),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            eos_token_ids=_token_ids(config.get("eos_token_id")),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        )


def attention_config(
    config: Mapping[str, Any], family: str, hidden: int, heads: int, source: str
) -> AttentionConfig:
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    head_dim = config.get("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise ConfigError(
                f"{source}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
                hint="set head_dim in the configuration",
            )
        head_dim = hidden // heads
    bias = bool(config.get("attention_bias", False))
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=int(head_dim),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        qk_norm=family == "qwen3",
    )


def _context_length(config: Mapping[str, Any], family: str, source: str) -> int:
    """The longest context the model can attend in full.

    A sliding window limits it: inside the window sliding and full attention are the same thing.
    """
    length = int(positive(config, "max_position_embeddings", source))
    window = config.get("sliding_window")
    windowed = family == "mistral" or bool(config.get("use_sliding_window", False))
    return min(length, int(window)) if window and windowed else length


def positive(config: Mapping[str, Any], key: str, source: str) -> float:
    value = config.get(key)
    if value is None:
        raise ConfigError(f"{source}: missing key {key!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{source}: {key} is {value!r}, expected a positive number")
    return float(value)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)


def read_json(path: Path) -> dict[str, Any]:
    """Parses a JSON object, naming the file when it is missing or damaged.

    Raises:
        ConfigError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", hint="is this a model folder?") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value
