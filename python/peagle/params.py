"""What a user asks of one request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from peagle.arguments import is_integer, strict_arguments
from peagle.errors import ConfigError


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


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (_is_int64, "a 64-bit integer"),
    "temperature": (_is_number, "a number"),
    "top_p": (_is_number, "a number"),
    "top_k": (_is_int64, "a 64-bit integer"),
    "min_p": (_is_number, "a number"),
    "seed": (
        lambda value: value is None or is_integer(value, 0, 2**64 - 1),
        "an unsigned 64-bit integer",
    ),
    "stop": (_are_strings, "a string or several"),
    "stop_token_ids": (_are_token_ids, "token ids from 0 to 2147483647"),
    "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
    "num_speculative_tokens": (
        lambda value: value is None or _is_int64(value),
        "a 64-bit integer",
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

    def __post_init__(self) -> None:
        for name, (fits, kind) in _KINDS.items():
            value = getattr(self, name)
            if not fits(value):
                raise ConfigError(f"{name} is {value!r}, expected {kind}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
