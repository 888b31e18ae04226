"""What a user asks of one request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from peagle.arguments import is_integer, strict_arguments
from peagle.errors import ConfigError

LogitsProcessor = Callable[
    [npt.NDArray[np.float32], npt.NDArray[np.int32]], npt.NDArray[np.float32] | None
]
"""(logits [vocabulary], token ids so far) -> another row, or `None` after editing the one given."""

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")


def _is_int64(value: Any) -> bool:
    return is_integer(value, -(2**63), 2**63 - 1)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _are_strings(value: Any) -> bool:
    return isinstance(value, Collection) and all(isinstance(part, str) for part in value)


def _are_token_ids(value: Any) -> bool:
    return isinstance(value, Collection) and all(is_integer(i, 0, 2**31 - 1) for i in value)


def _are_biases(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and _are_token_ids(value)
        and all(map(_is_number, value.values()))
    )


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_TOKEN_IDS = "token ids from 0 to 2147483647"
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (_is_int64, "a 64-bit integer of at least 1"),
    "temperature": (_is_number, "a finite number of at least 0"),
    "top_p": (_is_number, "a number above 0 and at most 1"),
    "top_k": (_is_int64, "a 64-bit integer of at least 0"),
    "min_p": (_is_number, "a number from 0 to 1"),
    "seed": (
        _or_none(lambda seed: is_integer(seed, 0, 2**64 - 1)),
        "None or an unsigned 64-bit integer",
    ),
    "stop": (_are_strings, "a string or several"),
    "stop_token_ids": (_are_token_ids, _TOKEN_IDS),
    "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
    "num_speculative_tokens": (_or_none(_is_int64), "None or an integer of at least 0"),
    "min_tokens": (_is_int64, "an integer from 0 to max_tokens"),
    "logit_bias": (_or_none(_are_biases), "None or token ids with numbers from -100 to 100"),
    "allowed_token_ids": (_or_none(_are_token_ids), f"None or {_TOKEN_IDS}"),
    "bad_words": (_are_strings, "a string or several"),
    "logits_processor": (_or_none(callable), "None or a callable"),
    "repetition_penalty": (_is_number, "a finite number above 0"),
    "frequency_penalty": (_is_number, "a number from -2 to 2"),
    "presence_penalty": (_is_number, "a number from -2 to 2"),
    "logprobs": (
        _or_none(lambda count: is_integer(count, 0, 2**31 - 1)),
        "None or an integer from 0 to 2147483647",
    ),
    "logprobs_mode": (
        lambda mode: isinstance(mode, str) and mode in LOGPROBS_MODES,
        " or ".join(map(repr, LOGPROBS_MODES)),
    ),
}
"""What the core can take at all. Which of these values make sense is for the core to say."""


@strict_arguments
@dataclass(frozen=True)
class SamplingParams:
    """How to sample and when to stop. Ranges are checked when the request is added.

    With the same seed the text is the same, whatever the batch, the drafts or their number.

    Raises:
        ConfigError: a value of another kind; the message names it.
    """

    max_tokens: int = 256
    """Most tokens to generate, at least 1."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass kept, in (0, 1]."""
    top_k: int = 0
    """Tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are dropped, in [0, 1]."""
    seed: int | None = None
    """Unsigned, 64 bits; drawn at admission and returned when absent."""
    stop: str | Sequence[str] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, besides the model's own."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    num_speculative_tokens: int | None = None
    """Most drafts a step; may only lower the engine's number, 0 is off."""

    min_tokens: int = 0
    """Output tokens before an end token, a stop token or a stop string may end the text, at most
    max_tokens. End and stop tokens are masked until then."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these tokens, each from -100 to 100."""
    allowed_token_ids: Sequence[int] | None = None
    """The only tokens that may be drawn."""
    bad_words: str | Sequence[str] = ()
    """Words that the output must not hold, at the start of a text or after a space."""
    logits_processor: LogitsProcessor | None = None
    """The caller's own change of every row: called with a row of float32 logits and the token ids
    that lead to it (prompt, output, drafts), both numpy. It edits the row or returns another. It is
    asked about drafts too, maybe more than once: the same arguments must give the same row."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens of prompt and output; above 0."""
    frequency_penalty: float = 0.0
    """Taken from a logit for each time the output holds the token, from -2 to 2."""
    presence_penalty: float = 0.0
    """Taken once from the logits of tokens of the output, from -2 to 2."""
    logprobs: int | None = None
    """Report the log probability of each token and of so many likeliest ones beside it."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    """Of the target's own law, or of the one that is sampled from: after processors, temperature,
    min_p, top_k and top_p (at temperature 0 after the processors alone)."""

    def __post_init__(self) -> None:
        for name, (fits, kind) in _KINDS.items():
            value = getattr(self, name)
            if not fits(value):
                raise ConfigError(f"{name} is {value!r}, expected {kind}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return _as_tuple(self.stop)

    @property
    def bad_word_strings(self) -> tuple[str, ...]:
        """`bad_words` as a tuple."""
        return _as_tuple(self.bad_words)

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raises `ConfigError` for token ids that a target of so many tokens does not have, where
        that would matter: an end token that never comes harms nobody.
        """
        for name in ("allowed_token_ids", "logit_bias"):
            outside = [token for token in getattr(self, name) or () if token >= vocabulary]
            if outside:
                raise ConfigError(
                    f"{name} has token id {outside[0]}, expected ids from 0 to {vocabulary - 1}"
                )


def _as_tuple(strings: str | Sequence[str]) -> tuple[str, ...]:
    return (strings,) if isinstance(strings, str) else tuple(strings)
