"""One dense decoder, driven by its configuration: Llama, SmolLM, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peagle.backends.base import Array, Backend, RopeTables
from peagle.models.batch import Batch, LayerCache
from peagle.models.config import DecoderConfig
from peagle.models.layers import DecoderLayer
from peagle.models.weights import WeightReader


@dataclass(frozen=True)
class Decoder:
    """A target model: token ids in, hidden states, auxiliary hidden states and logits out."""

    config: DecoderConfig
    backend: Backend
    embed_tokens: Array
    layers: tuple[DecoderLayer, ...]
    norm: Array
    lm_head: Any
    rope: RopeTables

    @classmethod
    def load(cls, folder: Path, backend: Backend, *, max_position: int | None = None) -> Decoder:
        """Loads a Hugging Face folder: `config.json` and single or sharded safetensors.

        Args:
            folder: the model folder.
            backend: where and in which dtype to run.
            max_position: length of the RoPE tables; the model's own context by default.

        Raises:
            ConfigError: unusable `config.json`, or sizes that the backend does not take.
            CheckpointError: missing, damaged, left-over or misshapen tensors.
        """
        config = DecoderConfig.from_folder(folder)
        backend.check(config.attention, str(folder))
        reader = WeightReader(folder, rename=_strip_prefix)
        hidden, dtype = config.hidden_size, backend.dtype
        embedding = reader.take("embed_tokens.weight", (config.vocab_size, hidden), dtype)
        layers = tuple(
            DecoderLayer.load(
                reader,
                f"layers.{index}",
                backend,
                config.attention,
                config.rms_norm_eps,
                hidden_size=hidden,
                intermediate_size=config.intermediate_size,
                mlp_bias=config.mlp_bias,
            )
            for index in range(config.num_layers)
        )
        norm = reader.take("norm.weight", (hidden,), dtype)
        if config.tie_word_embeddings:
            reader.skip("lm_head.weight")
            head = embedding
        else:
            head = reader.take("lm_head.weight", (config.vocab_size, hidden), dtype)
        reader.finish()
        return cls(
            config=config,
            backend=backend,
            embed_tokens=backend.array(embedding),
            layers=layers,
            norm=backend.array(norm),
            lm_head=backend.pack(head),
            rope=backend.rope_tables(
                config.rope, config.attention.head_dim, max_position or config.max_position
            ),
        )

    def default_taps(self) -> tuple[int, int, int]:
        """Layers whose *input* EAGLE-3 heads read by default: 2, n // 2, n - 3 (EAGLE, vLLM)."""
        n = self.config.num_layers
        return (2, n // 2, n - 3)

    def new_cache(self, num_blocks: int, block_size: int) -> list[LayerCache]:
        """An empty paged KV cache, one entry per layer."""
        return [
            self.backend.zeros_cache(num_blocks, block_size, self.config.attention)
            for _ in self.layers
        ]

    def forward(
        self, batch: Batch, cache: list[LayerCache], block_size: int, taps: tuple[int, ...] = ()
    ) -> tuple[Array, Array | None]:
        """One pass over the rows of `batch`, writing their KV.

        Args:
            batch: the rows, T of them.
            cache: from `new_cache`.
            block_size: of that cache.
            taps: ascending layer indices; the residual stream entering each is returned.

        Returns:
            The residual stream before the final norm [T, hidden_size], and the taps side by side
            [T, len(taps) * hidden_size] or `None`.
        """
        return self.step(self.backend.prepare(batch, block_size), cache, taps)

    def step(
        self, prepared: Any, cache: list[LayerCache], taps: tuple[int, ...] = ()
    ) -> tuple[Array, Array | None]:
        """`forward` of a batch that the backend has prepared: a pure function of arrays, but for
        the KV it writes in place.
        """
        backend = self.backend
        hidden = backend.embed(self.embed_tokens, prepared)
        tapped = []
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            if index in taps:
                tapped.append(backend.copy(hidden))
            layer.forward_(hidden, backend, layer_cache, prepared, self.rope, key_start=0)
        return hidden, backend.concat(tapped) if tapped else None

    def logits(self, hidden: Array, rows: npt.NDArray[np.int32]) -> Array:
        """Final norm and LM head of the named rows: float32 [len(rows), vocab_size]."""
        chosen = self.backend.take(hidden, rows)
        return self.backend.norm_linear_f32(
            chosen, self.norm, self.config.rms_norm_eps, self.lm_head
        )


def _strip_prefix(name: str) -> str | None:
    # Old Llama exports store the RoPE frequencies, which are a function of the configuration.
    if name.endswith("rotary_emb.inv_freq"):
        return None
    return name.removeprefix("model.")
