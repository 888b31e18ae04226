"""What an `LLM` is asked for: folders found and sizes checked before any weight is read."""

from __future__ import annotations

import logging
from pathlib import Path

from peagle.arguments import integer
from peagle.demo.head import demo_head_dir
from peagle.demo.target import demo_target_dir
from peagle.engine import EngineConfig
from peagle.errors import ConfigError
from peagle.heads.config import HeadConfig
from peagle.kv_cache import blocks_for
from peagle.models.config import DecoderConfig
from peagle.models.weights import weights_digest
from peagle.tokenizer import Tokenizer, read_eos_token_ids

logger = logging.getLogger(__name__)

DEMO = "demo"
DEFAULT_DRAFTS = 5
MAX_DRAFTS = 31
"""A window is at most 32 rows."""
DEFAULT_CONTEXT = 8192
BLOCK_SIZE_STEP = 16
LARGEST = 2**31 - 1
"""Slots and sizes are int32."""


def target_folder(model: str | Path) -> Path:
    """The folder of a target; `demo` is the demo target's."""
    _check_path("model", model)
    return demo_target_dir() if str(model) == DEMO else Path(model)


def head_folder(head: str | Path | None, model: str | Path) -> Path | None:
    """The folder of a head, if there is to be one; `auto` is the shipped head for the demo."""
    if head is not None:
        _check_path("head", head)
    name = str(head)
    if name == DEMO or (name == "auto" and str(model) == DEMO):
        return demo_head_dir()
    return None if head is None or name in ("none", "auto") else Path(head)


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, str | Path):
        raise ConfigError(f"{name} is {value!r}, expected a folder or {DEMO!r}")


def engine_config(
    target: DecoderConfig,
    *,
    has_head: bool,
    num_speculative_tokens: int | None,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    num_kv_blocks: int | None,
    verification: str,
) -> EngineConfig:
    """Checks an `LLM`'s sizes and fills in its defaults.

    Raises:
        ConfigError: a size out of range; the message names it.
    """
    k = num_speculative_tokens
    if k is None:
        k = DEFAULT_DRAFTS if has_head else 0
    if max_model_len is None:
        max_model_len = min(target.max_position, DEFAULT_CONTEXT)
    integer("num_speculative_tokens", k, 0, MAX_DRAFTS)
    integer("max_model_len", max_model_len, 2, target.max_position)
    integer("max_num_seqs", max_num_seqs, 1, LARGEST)
    integer("max_num_batched_tokens", max_num_batched_tokens, 1, LARGEST)
    integer("block_size", block_size, BLOCK_SIZE_STEP, LARGEST)
    if block_size % BLOCK_SIZE_STEP:
        raise ConfigError(
            f"block_size is {block_size}, expected a multiple of {BLOCK_SIZE_STEP}",
        )
    if k and not has_head:
        raise ConfigError(
            f"num_speculative_tokens is {k}, but there is no head",
            hint="choose a head, or ask for no drafts",
        )
    if num_kv_blocks is None:
        num_kv_blocks = blocks_for(max_model_len, max_num_seqs, k, block_size)
    integer("num_kv_blocks", num_kv_blocks, 1, LARGEST // block_size)
    return EngineConfig(
        num_blocks=num_kv_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_speculative_tokens=k,
        verification=verification,
    )


def warn_about_head(head: HeadConfig, k: int, target: Path) -> None:
    """Logs what makes a head draft worse than it could."""
    if head.k_train is not None and k > head.k_train:
        logger.warning(
            "num_speculative_tokens is %d, the head was trained for %d: deeper drafts will "
            "seldom be accepted",
            k,
            head.k_train,
        )
    if head.target_sha256 is not None and head.target_sha256 != weights_digest(target):
        logger.warning(
            "the head was trained for other weights than those in %s: its drafts may seldom be "
            "accepted",
            target,
        )


def eos_token_ids(
    folder: Path, config: DecoderConfig, tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """All end-of-sequence ids that a model folder names."""
    named = (*config.eos_token_ids, *read_eos_token_ids(folder))
    return tuple(dict.fromkeys(named + (tokenizer.eos_token_ids if tokenizer else ())))
