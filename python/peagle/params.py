"""What a user asks of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peagle.arguments import strict_arguments


@strict_arguments
@dataclass(frozen=True)
class SamplingParams:
    """How to sample and when to stop. Values are checked when the request is added.

    With the same seed the text is the same, whatever the batch, the drafts or their number.
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
    """64-bit; drawn at admission and returned when absent."""
    stop: str | Sequence[str] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, besides the model's own."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    num_speculative_tokens: int | None = None
    """Most drafts a step; may only lower the engine's number, 0 is off."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
