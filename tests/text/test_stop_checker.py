"""Stop strings against a plain definition, for every way to cut the tokens into windows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.detokenizer import REPLACEMENT
from peagle.errors import StopStringError
from peagle.stop_checker import NO_STOP, StopChecker
from peagle.tokenizer import Tokenizer

TEXTS = st.text(alphabet="abst op,é🙂日\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abst op🙂日", min_size=1, max_size=5), max_size=3)
PICKS = st.lists(st.floats(0.0, 1.0), max_size=8)


def defined_end(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], min_tokens: int = 0
) -> tuple[int, str] | None:
    """Return the first count of tokens, more than ``min_tokens``, whose text has a stop string that
    was not whole in the text of the first ``min_tokens``; and the text before it.
    """
    barred = len(tokenizer.decode(ids[:min_tokens]).rstrip(REPLACEMENT))
    for count in range(min_tokens + 1, len(ids) + 1):
        text = tokenizer.decode(ids[:count]).rstrip(REPLACEMENT)
        starts = [
            start
            for stop in stops
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > barred
        ]
        if starts:
            return count, text[: min(starts)]
    return None


def windows(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """Cut ids into windows of the given sizes, used round and round."""
    result = []
    position = turn = 0
    while position < len(ids):
        size = sizes[turn % len(sizes)]
        result.append(ids[position : position + size])
        position, turn = position + size, turn + 1
    return result


@given(
    text=TEXTS,
    extra=PICKS,
    stops=STOPS,
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    min_tokens=st.integers(0, 12),
)
@settings(max_examples=400, deadline=None)
def test_windows_do_not_matter_and_the_definition_holds(
    any_tokenizer: Tokenizer,
    text: str,
    extra: list[float],
    stops: list[str],
    sizes: list[int],
    min_tokens: int,
) -> None:
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    ids += [int(pick * (any_tokenizer.vocab_size - 1)) for pick in extra]
    expected = defined_end(any_tokenizer, ids, stops, min_tokens)
    checker = StopChecker(any_tokenizer, stops, min_tokens=min_tokens)
    shown, taken, found = "", 0, False
    for window in windows(ids, sizes):
        keep = checker.check(window)
        assert keep == checker.check(window)  # asking changes nothing
        found = keep != NO_STOP
        kept = window[:keep] if found else window
        taken += len(kept)
        shown += checker.commit(kept, finished=found)
        if found:
            break
    shown += checker.commit([], finished=True)
    assert shown == checker.text
    if expected is None:
        assert not found
        assert shown == any_tokenizer.decode(ids)
    else:
        assert found
        assert (taken, shown) == expected
        assert min_tokens or not any(stop in shown for stop in stops)


@given(text=TEXTS, stops=STOPS)
@settings(max_examples=200, deadline=None)
def test_only_a_possible_start_of_a_stop_string_is_held_back(
    byte_tokenizer: Tokenizer, text: str, stops: list[str]
) -> None:
    ids = byte_tokenizer.encode(text)
    checker = StopChecker(byte_tokenizer, stops)
    if checker.check(ids) != NO_STOP:
        return
    for count, token_id in enumerate(ids, 1):
        checker.commit([token_id])
        certain = byte_tokenizer.decode(ids[:count]).rstrip(REPLACEMENT)
        held = certain[len(checker.text) :]
        assert certain.startswith(checker.text)
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_cut_for_another_reason_brings_out_what_was_held(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("go sto")
    checker = StopChecker(byte_tokenizer, ["stop"])
    shown = checker.commit(ids)
    assert shown == "go "
    assert checker.commit([], finished=True) == "sto"
    assert checker.text == "go sto"


def test_check_may_be_followed_by_fewer_tokens(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("go, stop and go")
    checker = StopChecker(byte_tokenizer, ["stop"])
    keep = checker.check(ids)
    assert 0 < keep <= len(ids)
    assert checker.commit(ids[: keep - 1], finished=True) == byte_tokenizer.decode(ids[: keep - 1])


def test_the_leftmost_of_several_wins(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("brown fox")
    checker = StopChecker(byte_tokenizer, ["ox", "own", "brow"])
    keep = checker.check(ids)
    assert checker.commit(ids[:keep], finished=True) == ""


def test_without_stop_strings_nothing_is_held(byte_tokenizer: Tokenizer) -> None:
    checker = StopChecker(byte_tokenizer)
    ids = byte_tokenizer.encode("stop and go")
    assert checker.check(ids) == NO_STOP
    assert checker.commit(ids) == "stop and go"


def test_a_special_token_as_stop_string(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("go<|im_end|> on")
    checker = StopChecker(byte_tokenizer, ["<|im_end|>"])
    keep = checker.check(ids)
    assert byte_tokenizer.token_text(ids[keep - 1]) == "<|im_end|>"
    assert checker.commit(ids[:keep], finished=True) == "go"
    shown = StopChecker(byte_tokenizer, ["<|im_end|>"], skip_special_tokens=False)
    assert shown.check(ids) == keep
    assert shown.commit(ids, finished=True) == "go"


@pytest.mark.parametrize("stop", ["", "x<|im_end|>"])
def test_stop_strings_that_cannot_be_honoured_are_refused(
    byte_tokenizer: Tokenizer, stop: str
) -> None:
    with pytest.raises(StopStringError):
        StopChecker(byte_tokenizer, ["fine", stop])
