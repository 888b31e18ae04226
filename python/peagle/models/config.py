"""Target configuration: Hugging Face `config.json` in, one strict dataclass out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.arguments import is_integer
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
            merged.update(section(config, key, source))
        thetas = {"rope_theta": 10000.0, **config, **merged}
        theta = positive(thetas, "rope_theta", source)
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
                original_max_position=count(merged, "original_max_position_embeddings", source),
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
        require_silu(config, source)
        return cls(
            vocab_size=count(config, "vocab_size", source),
            hidden_size=count(config, "hidden_size", source),
            intermediate_size=count(config, "intermediate_size", source),
            num_layers=count(config, "num_hidden_layers", source),
            attention=attention_config(config, family, source),
            rope=RopeConfig.from_config(config, source),
            rms_norm_eps=positive(config, "rms_norm_eps", source),
            max_position=_context_length(config, family, source),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            eos_token_ids=_eos_token_ids(config, source),
        )


def attention_config(config: Mapping[str, Any], family: str, source: str) -> AttentionConfig:
    """What the layers of a target or a head attend with."""
    hidden = count(config, "hidden_size", source)
    heads = count(config, "num_attention_heads", source)
    kv_heads = count(config, "num_key_value_heads", source, default=heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{source}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
            hint="set head_dim in the configuration",
        )
    bias = bool(config.get("attention_bias", False))
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=count(config, "head_dim", source, default=hidden // heads),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        qk_norm=family == "qwen3",
    )


def _context_length(config: Mapping[str, Any], family: str, source: str) -> int:
    """The longest context the model can attend in full.

    A sliding window limits it: inside the window sliding and full attention are the same thing.
    """
    length = count(config, "max_position_embeddings", source)
    windowed = family == "mistral" or bool(config.get("use_sliding_window", False))
    return min(length, count(config, "sliding_window", source, length)) if windowed else length


def positive(config: Mapping[str, Any], key: str, source: str) -> float:
    """A number above zero."""
    value = config.get(key)
    if value is None:
        raise ConfigError(f"{source}: missing key {key!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{source}: {key} is {value!r}, expected a positive number")
    return float(value)


def count(config: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    """A whole number above zero; `default` where the key is missing or null."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not positive(config, key, source).is_integer():
        raise ConfigError(f"{source}: {key} is {value!r}, expected a whole number")
    return int(config[key])


def section(config: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """An object inside the configuration; empty where the key is missing or null."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {key} is {value!r}, expected an object")
    return value


def require_silu(config: Mapping[str, Any], source: str) -> None:
    """Refuses another activation than the one that is implemented."""
    found = config.get("hidden_act", "silu")
    if found != "silu":
        raise ConfigError(f"{source}: hidden_act is {found!r}, expected 'silu'")


def _eos_token_ids(config: Mapping[str, Any], source: str) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(is_integer(i, 0, 2**31 - 1) for i in ids):
        raise ConfigError(f"{source}: eos_token_id is {value!r}, expected a token id or several")
    return tuple(ids)


def read_json(path: Path) -> dict[str, Any]:
    """Parses a JSON object, naming the file when it is missing or damaged.

    Raises:
        ConfigError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", hint="is this the right folder?") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value
