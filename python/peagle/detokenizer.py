"""Token ids to text, piece by piece, with the same result as decoding all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Self

from peagle.tokenizer import Tokenizer

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN: Final = re.compile("<0x[0-9A-Fa-f]{2}>")


class IncrementalDetokenizer:
    """Gives out text as soon as no later token can change it.

    Everything returned by ``push`` and ``flush``, joined, equals ``Tokenizer.decode`` of all the
    tokens. Half a character is held back until its last byte arrives. A replacement character
    comes out only once the next good character, or the end, shows that it is one.

    The decoder looks at neighbours (a leading space, a run of byte tokens), so new tokens are
    decoded together with the last ones that gave text.
    """

    __slots__ = ("_context", "_context_len", "_given", "_pending", "_skip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._context: list[int] = []  # given out wholly, kept for what follows
        self._context_len = 0  # characters of the context's own text
        self._pending: list[int] = []  # not given out wholly
        self._given = 0  # characters of the pending tokens that are given out

    def copy(self) -> Self:
        """Return an independent detokenizer in the same state."""
        other = type(self)(self._tokenizer, skip_special_tokens=self._skip)
        other._context = self._context
        other._context_len = self._context_len
        other._pending = self._pending.copy()
        other._given = self._given
        return other

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is now certain, often empty."""
        if self._skip and token_id in self._tokenizer.special_ids:
            return ""
        token = self._tokenizer.token_text(token_id)
        if token is None:
            return ""  # an id of the model's padding
        self._pending.append(token_id)
        text = self.pending_text()
        if not text or _BYTE_TOKEN.fullmatch(token):
            return ""  # a run of byte tokens is decoded as a whole: wait for its end
        certain = text.rstrip(REPLACEMENT)
        if certain != text:
            self._given += len(certain)
            return certain
        self._context = self._pending
        self._context_len = len(self._decode(self._context))
        self._pending = []
        self._given = 0
        return text

    def extend(self, token_ids: Iterable[int]) -> str:
        """Take several tokens and return the text that is now certain."""
        return "".join([self.push(token_id) for token_id in token_ids])

    def pending_text(self) -> str:
        """Return the held back text as it would be if no more tokens came; changes nothing."""
        if not self._pending:
            return ""
        return self._decode(self._context + self._pending)[self._context_len + self._given :]

    def flush(self) -> str:
        """Return the rest of the text; nothing may be pushed afterwards."""
        text = self.pending_text()
        self._pending = []
        self._given = 0
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
