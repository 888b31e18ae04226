"""Where stop strings end a request, and which text may be shown before that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peagle.detokenizer import REPLACEMENT, IncrementalDetokenizer
from peagle.errors import StopStringError
from peagle.tokenizer import Tokenizer

NO_STOP: Final = -1


class StopChecker:
    """Follows the text of one request and finds the first token that completes a stop string.

    The answer depends on the tokens alone, never on how they are cut into windows: token n is
    the last one if the text of tokens 1..n (without half a character at its end) contains a stop
    string and that of 1..n-1 does not. The text then ends before the leftmost stop string in it.
    A stop string that is itself a special token ends the request at that token. The first
    ``min_tokens`` tokens end nothing, nor does a stop string that was whole by then.

    ``check`` asks about tokens that may yet be cut for another reason and changes nothing;
    ``commit`` takes those that stay.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        """Prepare for one request.

        Raises:
            StopStringError: a stop string is empty, or has a special token inside that the text
                will never show, so that it could not be honoured.
        """
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens
        )
        hidden = {}
        if skip_special_tokens:
            hidden = {tokenizer.token_text(index): index for index in tokenizer.special_ids}
        for stop in stops:
            _check_stop(stop, hidden)
        self._stop_ids = frozenset(hidden[stop] for stop in stops if stop in hidden)
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop not in hidden))
        self._longest = max(map(len, self._stops), default=0)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._tail = ""  # certain text from which a stop string may still grow
        self._barred = 0  # characters of the tail and what follows where no stop string may end
        self._parts: list[str] = []  # text given out
        self._ended = False

    @property
    def text(self) -> str:
        """All text given out by ``commit`` so far."""
        return "".join(self._parts)

    def check(self, token_ids: Sequence[int]) -> int:
        """Return how many of these next tokens to keep when a stop string ends them, else -1.

        Pure: asks what ``commit`` of the same tokens would find.
        """
        if not self._stops and not self._stop_ids:
            return NO_STOP
        detokenizer, tail, barred = self._detokenizer.copy(), self._tail, self._barred
        for count, token_id in enumerate(token_ids, 1):
            may_end = self._num_tokens + count > self._min_tokens
            if may_end and token_id in self._stop_ids:
                return count
            tail += detokenizer.push(token_id)
            certain = tail + _whole(detokenizer.pending_text())
            if not may_end:
                barred = len(certain)
            elif self._find(certain, barred) is not None:
                return count
            safe = self._safe_length(tail)
            tail, barred = tail[safe:], max(0, barred - safe)
        return NO_STOP

    def commit(self, token_ids: Sequence[int], *, finished: bool = False) -> str:
        """Take committed tokens and return the text that may be shown now.

        Text that could be the start of a stop string is held back. With ``finished`` (the request
        ended, for whatever reason) everything comes out, up to a stop string if there is one.
        Tokens after a stop string add nothing.
        """
        if self._ended:
            return ""
        shown: list[str] = []
        for token_id in token_ids:
            if self._take(token_id, shown):
                self._ended = True
                break
        if finished and not self._ended:
            shown.append(self._tail + self._detokenizer.flush())
            self._ended = True
        text = "".join(shown)
        if text:
            self._parts.append(text)
        return text

    def _take(self, token_id: int, shown: list[str]) -> bool:
        """Take one token, append what may be shown, and say whether a stop ended the text."""
        self._num_tokens += 1
        may_end = self._num_tokens > self._min_tokens
        if may_end and token_id in self._stop_ids:
            shown.append(self._tail + self._detokenizer.flush())
            return True
        self._tail += self._detokenizer.push(token_id)
        if self._stops:
            certain = self._tail + _whole(self._detokenizer.pending_text())
            if not may_end:
                self._barred = len(certain)
            elif (start := self._find(certain, self._barred)) is not None:
                shown.append(certain[:start])
                return True
        safe = self._safe_length(self._tail)
        shown.append(self._tail[:safe])
        self._tail, self._barred = self._tail[safe:], max(0, self._barred - safe)
        return False

    def _find(self, text: str, barred: int) -> int | None:
        """Return the leftmost start of a stop string that ends in ``text[barred:]``."""
        found = (text.find(stop, max(0, barred + 1 - len(stop))) for stop in self._stops)
        return min((start for start in found if start >= 0), default=None)

    def _safe_length(self, text: str) -> int:
        """Return the length of ``text`` without the longest ending that begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            ending = text[start:]
            if any(stop.startswith(ending) for stop in self._stops):
                return start
        return len(text)


def _check_stop(stop: str, hidden: dict[str | None, int]) -> None:
    if not stop:
        raise StopStringError("a stop string must not be empty")
    if stop in hidden:
        return
    for token in hidden:
        if token and token in stop:
            raise StopStringError(
                f"the stop string {stop!r} has the special token {token!r} inside, which the text "
                f"does not show",
                hint="use the special token alone as a stop string, or stop_token_ids",
            )


def _whole(text: str) -> str:
    """Return ``text`` without half a character at its end."""
    return text.rstrip(REPLACEMENT)
