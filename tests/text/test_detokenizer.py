"""Incremental text equals the text of all tokens at once, and nothing comes out too early."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from peagle.detokenizer import REPLACEMENT, IncrementalDetokenizer
from peagle.tokenizer import Tokenizer

# Positions in the vocabulary; a little more than 1 gives ids without a token.
PICKS = st.lists(st.floats(0.0, 1.02), max_size=40)


def ids_of(tokenizer: Tokenizer, picks: list[float]) -> list[int]:
    return [int(pick * tokenizer.vocab_size) for pick in picks]


@given(picks=PICKS, skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_tokens_give_the_text_of_the_whole(
    any_tokenizer: Tokenizer, picks: list[float], skip: bool
) -> None:
    ids = ids_of(any_tokenizer, picks)
    detokenizer = IncrementalDetokenizer(any_tokenizer, skip_special_tokens=skip)
    whole = any_tokenizer.decode(ids, skip_special_tokens=skip)
    shown = ""
    for token_id in ids:
        shown += detokenizer.push(token_id)
        assert whole.startswith(shown)
    assert shown + detokenizer.flush() == whole


@given(text=st.text(max_size=60), cuts=st.data())
@settings(max_examples=200, deadline=None)
@example(text="a👩‍💻 b 日本 é", cuts=None)
def test_valid_text_never_shows_half_a_character(
    byte_tokenizer: Tokenizer, text: str, cuts: st.DataObject | None
) -> None:
    text = text.replace(REPLACEMENT, "")
    ids = byte_tokenizer.encode(text)
    detokenizer = IncrementalDetokenizer(byte_tokenizer, skip_special_tokens=False)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert REPLACEMENT not in "".join(pieces)
    assert "".join(pieces) == text  # nothing left to flush
    assert detokenizer.flush() == ""


@given(picks=PICKS, later=PICKS)
@settings(max_examples=100, deadline=None)
def test_a_copy_does_not_touch_the_original(
    any_tokenizer: Tokenizer, picks: list[float], later: list[float]
) -> None:
    ids, more = ids_of(any_tokenizer, picks), ids_of(any_tokenizer, later)
    detokenizer = IncrementalDetokenizer(any_tokenizer)
    shown = detokenizer.extend(ids)
    detokenizer.copy().extend(more)
    assert shown + detokenizer.flush() == any_tokenizer.decode(ids)


def test_an_emoji_over_several_tokens_comes_out_at_its_last_byte(
    fallback_tokenizer: Tokenizer,
) -> None:
    ids = [fallback_tokenizer.token_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    detokenizer = IncrementalDetokenizer(fallback_tokenizer)
    assert detokenizer.extend([index for index in ids if index is not None]) == ""
    # A run of byte tokens counts as a whole: one bad byte would spoil it.
    after = fallback_tokenizer.token_id("a")
    assert after is not None
    assert detokenizer.push(after) == "🙂a"


def test_spaces_between_words_stay(fallback_tokenizer: Tokenizer) -> None:
    ids = fallback_tokenizer.encode("the the stop", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(fallback_tokenizer)
    end = fallback_tokenizer.eos_token_id
    assert end is not None
    pieces = [detokenizer.push(token_id) for token_id in [end, *ids, end]]
    assert "".join(pieces) == "the the stop"
