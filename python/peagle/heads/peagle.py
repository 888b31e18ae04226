"""The P-EAGLE head (arXiv 2602.01469): all K draft tokens from one forward pass.

The network is EAGLE-3's: the target's tapped hidden states go through `fc`, a first layer reads
[norm(embedding) ; norm(hidden)] side by side, further layers are ordinary ones, a final norm and
an LM head over the draft vocabulary follow. Depths past the first are rows whose token is the mask
token and whose hidden state is one learned vector, `mask_hidden`, stored in front of `fc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from peagle.backends.base import Array, Backend, RopeTables
from peagle.errors import DraftVocabularyError, HeadMismatchError, MaskHiddenError
from peagle.heads.config import HeadConfig
from peagle.heads.transition import Transition
from peagle.models.batch import Batch, LayerCache
from peagle.models.layers import DecoderLayer
from peagle.models.llama import Decoder
from peagle.models.weights import WeightReader


@dataclass(frozen=True)
class PEagleHead:
    """A loaded head, checked against its target."""

    config: HeadConfig
    backend: Backend
    taps: tuple[int, ...]
    embed_tokens: Array
    fc: Any
    tap_norm: Array | None
    """[num_taps * target_hidden_size] when `norm_before_fc`."""
    tap_norms: tuple[Array, ...]
    """One [target_hidden_size] for each tap when `fc_norm`."""
    mask_hidden: Array
    """[1, hidden_size], after `fc`."""
    embed_norm: Array
    hidden_norm: Array
    layers: tuple[DecoderLayer, ...]
    norm: Array
    lm_head: Any
    target_ids: npt.NDArray[np.int32]
    """[draft_vocab_size] target token id of each draft token id."""
    rope: RopeTables
    transition: Transition | None

    @classmethod
    def load(
        cls, folder: Path, target: Decoder, *, max_position: int, transition: bool = True
    ) -> PEagleHead:
        """Loads a head folder in either layout and checks that it fits the target.

        Args:
            folder: `config.json` and `model.safetensors`.
            target: the model it drafts for; lends embeddings or LM head that the file leaves out.
            max_position: longest context that will be drafted for, in tokens.
            transition: whether to use the head's transition table, if it has one.

        Raises:
            ConfigError: unusable `config.json`, or sizes that the backend does not take.
            CheckpointError: missing, damaged, left-over or misshapen tensors.
            HeadMismatchError: sizes that do not fit the target.
            MaskHiddenError: no `mask_hidden`: not a P-EAGLE head.
            DraftVocabularyError: unusable `d2t`.
        """
        config = HeadConfig.from_folder(folder)
        taps = _check_fit(config, target, folder)
        target.backend.check(config.attention, str(folder))
        reader = WeightReader(folder, rename=_canonical_name)
        backend = target.backend
        dtype, hidden = backend.dtype, config.hidden_size
        tap_width = config.num_taps * config.target_hidden_size

        def vector(name: str, size: int) -> Array:
            return backend.array(reader.take(name, (size,), dtype))

        fc = backend.pack(reader.take("fc.weight", (hidden, tap_width), dtype))
        tap_norm = vector("input_norm.weight", tap_width) if config.norm_before_fc else None
        tap_norms = tuple(
            vector(f"fc_norm.{i}.weight", config.target_hidden_size)
            for i in range(config.num_taps if config.fc_norm else 0)
        )
        mask = backend.array(_mask_hidden(reader, tap_width, folder).to(dtype))
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
                fused_input=index == 0,
            )
            for index in range(config.num_layers)
        )
        head = cls(
            config=config,
            backend=backend,
            taps=taps,
            embed_tokens=_embedding(reader, config, target),
            fc=fc,
            tap_norm=tap_norm,
            tap_norms=tap_norms,
            mask_hidden=_project(backend, mask, fc, tap_norm, tap_norms, config),
            embed_norm=vector("layers.0.input_layernorm.weight", hidden),
            hidden_norm=vector("layers.0.hidden_norm.weight", hidden),
            layers=layers,
            norm=vector("norm.weight", hidden),
            lm_head=_lm_head(reader, config, target),
            target_ids=_target_ids(reader, config, folder),
            rope=backend.rope_tables(config.rope, config.attention.head_dim, max_position),
            transition=(
                Transition.load(folder, backend, config.draft_vocab_size, config.transition_rank)
                if transition and config.transition_rank is not None
                else None
            ),
        )
        reader.finish()
        return head

    def new_cache(self, num_blocks: int, block_size: int) -> list[LayerCache]:
        """An empty paged KV cache, one entry per layer."""
        return [
            self.backend.zeros_cache(num_blocks, block_size, self.config.attention)
            for _ in self.layers
        ]

    def project(self, aux: Array) -> Array:
        """The taps [T, num_taps * target_hidden_size] through `fc`: [T, hidden_size]."""
        return _project(self.backend, aux, self.fc, self.tap_norm, self.tap_norms, self.config)

    def forward(
        self,
        batch: Batch,
        hidden: Array,
        cache: list[LayerCache],
        block_size: int,
        rows: npt.NDArray[np.int32],
    ) -> Array:
        """One drafter pass.

        Args:
            batch: committed rows and mask rows (with the mask token's id), T of them.
            hidden: [T, hidden_size], `project`ed hidden states; `mask_hidden` for mask rows. Not
                kept.
            cache: from `new_cache`; slot 0 of a request is never read.
            block_size: of that cache.
            rows: whose logits are wanted.

        Returns:
            float32 logits over the draft vocabulary [len(rows), draft_vocab_size].
        """
        residual = self.step(self.backend.prepare(batch, block_size), hidden, cache)
        return self.backend.norm_linear_f32(
            self.backend.take(residual, rows), self.norm, self.config.rms_norm_eps, self.lm_head
        )

    def greedy_chain(self, logits: Array) -> npt.NDArray[np.int64]:
        """The likeliest token at each depth, behind the one before it.

        Args:
            logits: float32 [depths, draft_vocab_size].

        Returns:
            Draft ids [depths]; -1 where the logits hold a NaN.
        """
        best = self.backend.argmax(logits)
        if self.transition is not None:
            for depth in range(1, len(best)):
                row = logits[depth : depth + 1]
                if best[depth - 1] >= 0:
                    row = self.transition.correct(row, int(best[depth - 1]))
                best[depth] = self.backend.argmax(row)[0]
        return best

    def step(self, prepared: Any, hidden: Array, cache: list[LayerCache]) -> Array:
        """The layers over a batch that the backend has prepared: the residual stream before the
        final norm [T, hidden_size].
        """
        backend, eps = self.backend, self.config.rms_norm_eps
        embedded = backend.embed(self.embed_tokens, prepared)
        normed = backend.rms_norm(hidden, self.hidden_norm, eps)
        fused = backend.concat([backend.rms_norm(embedded, self.embed_norm, eps), normed])
        residual = normed if self.config.norm_before_residual else hidden
        first, *others = self.layers
        qkv = backend.linear(fused, first.qkv)
        first.attend_(qkv, residual, backend, cache[0], prepared, self.rope, key_start=1)
        for layer, layer_cache in zip(others, cache[1:], strict=True):
            layer.forward_(residual, backend, layer_cache, prepared, self.rope, key_start=1)
        return residual


def _canonical_name(name: str) -> str | None:
    """Layout A's `midlayer.*` is layout B's `layers.0.*`; `t2d` serves training only."""
    name = name.removeprefix("model.")
    if name == "t2d":
        return None
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _check_fit(config: HeadConfig, target: Decoder, folder: Path) -> tuple[int, ...]:
    """Compares sizes with the target; returns the taps."""

    def expect(key: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise HeadMismatchError(
                f"{folder}: {key} is {found}, the target has {wanted}",
                hint="this head was trained for another target",
            )

    expect("target_hidden_size", config.target_hidden_size, target.config.hidden_size)
    expect("vocab_size", config.vocab_size, target.config.vocab_size)
    if config.draft_vocab_size > config.vocab_size:
        raise HeadMismatchError(
            f"{folder}: draft_vocab_size {config.draft_vocab_size} is larger than "
            f"vocab_size {config.vocab_size}"
        )
    if config.mask_token_id >= config.vocab_size:
        raise HeadMismatchError(
            f"{folder}: mask token id {config.mask_token_id} has no embedding row, "
            f"vocab_size is {config.vocab_size}"
        )
    taps = config.taps or target.default_taps()
    if min(taps) < 0 or max(taps) >= target.config.num_layers:
        raise HeadMismatchError(
            f"{folder}: taps {list(taps)} name layers that the target does not have "
            f"(it has {target.config.num_layers})"
        )
    if len(set(taps)) != config.num_taps:
        raise HeadMismatchError(
            f"{folder}: {len(set(taps))} taps {sorted(set(taps))}, expected {config.num_taps}",
            hint="the target may be too shallow for default taps; set "
            "eagle_config.eagle_aux_hidden_state_layer_ids",
        )
    return tuple(sorted(set(taps)))


def _mask_hidden(reader: WeightReader, width: int, folder: Path) -> torch.Tensor:
    if "mask_hidden" not in reader:
        raise MaskHiddenError(
            f"{folder}: tensor 'mask_hidden' is missing",
            hint="this looks like an EAGLE-3 head; it cannot draft in parallel",
        )
    shape = reader.shape("mask_hidden")
    if torch.Size(shape).numel() != width or shape[-1] != width:
        raise MaskHiddenError(
            f"{folder}: 'mask_hidden' has shape {list(shape)}, expected [1, 1, {width}]"
        )
    return reader.take("mask_hidden", shape, None).reshape(1, width)


def _project(
    backend: Backend,
    aux: Array,
    fc: Any,
    tap_norm: Array | None,
    tap_norms: tuple[Array, ...],
    config: HeadConfig,
) -> Array:
    eps = config.rms_norm_eps
    if tap_norms:
        width = config.target_hidden_size
        chunks = [backend.columns(aux, i * width, width) for i in range(len(tap_norms))]
        aux = backend.concat(
            [backend.rms_norm(x, w, eps) for x, w in zip(chunks, tap_norms, strict=True)]
        )
    if tap_norm is not None:
        return backend.norm_linear(aux, tap_norm, eps, fc)
    return backend.linear(aux, fc)


def _embedding(reader: WeightReader, config: HeadConfig, target: Decoder) -> Array:
    if "embed_tokens.weight" in reader:
        shape = (config.vocab_size, config.hidden_size)
        return target.backend.array(reader.take("embed_tokens.weight", shape, target.backend.dtype))
    if config.hidden_size != target.config.hidden_size:
        raise HeadMismatchError(
            f"{reader.folder}: no embed_tokens.weight, and the target's embeddings have width "
            f"{target.config.hidden_size}, expected {config.hidden_size}"
        )
    return target.embed_tokens


def _lm_head(reader: WeightReader, config: HeadConfig, target: Decoder) -> Any:
    if "lm_head.weight" in reader:
        shape = (config.draft_vocab_size, config.hidden_size)
        return target.backend.pack(reader.take("lm_head.weight", shape, target.backend.dtype))
    found = (config.draft_vocab_size, config.hidden_size)
    wanted = (target.config.vocab_size, target.config.hidden_size)
    if found != wanted:
        raise HeadMismatchError(
            f"{reader.folder}: no lm_head.weight, and the target's has shape {list(wanted)}, "
            f"expected {list(found)}"
        )
    return target.lm_head


def _target_ids(reader: WeightReader, config: HeadConfig, folder: Path) -> npt.NDArray[np.int32]:
    """Turns `d2t` (offsets: target id = draft id + d2t[draft id]) into target ids."""
    size, vocab = config.draft_vocab_size, config.vocab_size
    draft_ids = np.arange(size, dtype=np.int64)
    if "d2t" not in reader:
        if size != vocab:
            raise DraftVocabularyError(
                f"{folder}: tensor 'd2t' is missing, draft_vocab_size {size} differs from "
                f"vocab_size {vocab}"
            )
        return draft_ids.astype(np.int32)
    offsets = reader.take("d2t", (size,), torch.int64).numpy()
    target_ids = draft_ids + offsets
    if size < vocab and not offsets.any():
        raise DraftVocabularyError(
            f"{folder}: 'd2t' is all zeros, which maps {size} draft ids to the first ids of "
            f"{vocab}; expected offsets of a chosen vocabulary"
        )
    bad = np.flatnonzero((target_ids < 0) | (target_ids >= vocab))
    falling = np.flatnonzero(np.diff(target_ids) <= 0)
    if bad.size or falling.size:
        hint = None
        if (np.diff(offsets) > 0).all() and offsets[0] >= 0 and offsets[-1] < vocab:
            hint = "the values look like absolute target ids; expected offsets from the draft id"
        what = (
            f"draft id {bad[0]} maps to target id {target_ids[bad[0]]}, expected 0 to {vocab - 1}"
            if bad.size
            else f"target ids do not increase at draft id {falling[0] + 1}"
        )
        raise DraftVocabularyError(f"{folder}: 'd2t' is unusable: {what}", hint=hint)
    mapped: npt.NDArray[np.int32] = target_ids.astype(np.int32)
    return mapped
