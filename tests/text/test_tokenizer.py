"""Reading a folder's tokenizer, encoding, decoding, end-of-sequence ids and chat templates."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.chat_template import ChatTemplate
from peagle.errors import BadWordError, ChatTemplateError, TokenizerError
from peagle.tokenizer import Tokenizer, read_eos_token_ids

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [{"role": "user", "content": "stop and go?"}]


def write(folder: Path, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, byte_tokenizer: Tokenizer) -> Path:
    """A model folder with the byte-level tokenizer."""
    byte_tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": CHATML})
    write(tmp_path, "config.json", {"eos_token_id": 0})
    return tmp_path


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
@settings(max_examples=200, deadline=None)
def test_byte_level_text_survives_the_round_trip(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text)
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= index < byte_tokenizer.vocab_size for index in ids)


def test_a_bad_word_has_a_form_for_the_start_and_one_for_after_a_space(
    byte_tokenizer: Tokenizer,
) -> None:
    forms = byte_tokenizer.word_ids("  stop")
    assert [byte_tokenizer.decode(form) for form in forms] == ["stop", " stop"]
    for word in ("", "   "):
        with pytest.raises(BadWordError, match="at least one token"):
            byte_tokenizer.word_ids(word)


def test_a_bad_word_without_two_forms_has_one(fallback_tokenizer: Tokenizer) -> None:
    """A tokenizer that puts a space before every text."""
    forms = fallback_tokenizer.word_ids("the")
    assert len({tuple(form) for form in forms}) == len(forms)


def test_a_lone_surrogate_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate at character 1"):
        byte_tokenizer.encode("a\ud800b")


def test_a_folder_gives_what_its_files_say(folder: Path, byte_tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("stop and go") == byte_tokenizer.encode("stop and go")
    assert tokenizer.special_ids == byte_tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.eos_token_id == 2
    assert tokenizer.eos_token_ids == (0, 2)  # the model's own and the tokenizer's
    ids = tokenizer.apply_chat_template(CHAT)
    text = "<|im_start|>user\nstop and go?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == "user\nstop and go?\nassistant\n"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.sha256 == hashlib.sha256(CHATML.encode()).hexdigest()


def test_a_stored_truncation_does_not_shorten_prompts(folder: Path) -> None:
    value = json.loads((folder / "tokenizer.json").read_text())
    value["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    write(folder, "tokenizer.json", value)
    assert len(Tokenizer.from_folder(folder).encode("stop and go, stop and go")) > 2


def test_bos_comes_from_the_tokenizer_file_and_not_into_chats(
    tmp_path: Path, byte_tokenizer: Tokenizer
) -> None:
    value = json.loads(byte_tokenizer.backend.to_str())
    value["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    write(tmp_path, "tokenizer.json", value)
    write(tmp_path, "tokenizer_config.json", {"bos_token": {"content": "<|endoftext|>"}})
    write(tmp_path, "chat_template.jinja", "{{ bos_token }}{{ messages[0]['content'] }}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("go")[0] == 0
    assert 0 not in tokenizer.encode("go", add_special_tokens=False)
    assert tokenizer.apply_chat_template(CHAT).count(0) == 1


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, {"eos_token_id": 5}, (5,)),
        ({"eos_token_id": [7, 8, 7]}, {"eos_token_id": 5}, (7, 8)),
        ({}, {"eos_token_id": [5, 6]}, (5, 6)),
        ({"eos_token_id": None}, {"text_config": {"eos_token_id": 9}}, (9,)),
        (None, {}, ()),
        ({"eos_token_id": 0}, {"eos_token_id": 5}, (0,)),
    ],
)
def test_end_of_sequence_ids(
    tmp_path: Path, generation: object, config: object, expected: tuple[int, ...]
) -> None:
    write(tmp_path, "config.json", config)
    if generation is not None:
        write(tmp_path, "generation_config.json", generation)
    assert read_eos_token_ids(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", '{"eos_token": "<gone>"}', "'<gone>' is not in the vocabulary"),
        ("tokenizer_config.json", '{"chat_template": 3}', "must be a text, not int"),
        ("generation_config.json", '{"eos_token_id": "x"}', "must be an id or a list of ids"),
    ],
)
def test_malformed_files_are_named(folder: Path, name: str, content: str, message: str) -> None:
    write(folder, name, content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(folder)


def test_a_missing_tokenizer_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_without_a_template_a_chat_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        byte_tokenizer.apply_chat_template(CHAT)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  {% set x = 1 %}\nline\n{% endif %}\n", "line\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "é <b>"}]'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True, indent=1) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aé <b>b"),
        ("{{ 'yes' if tools is none else 'no' }}{{ enable_thinking }}", "yesFalse"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ bos_token }}{{ add_generation_prompt }}", "<s>True"),
        ("{{ messages[0].role }}", "user"),
    ],
)
def test_template_conventions(source: str, expected: str) -> None:
    messages = [{"role": "user", "content": "é <b>"}]
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(messages, variables={"enable_thinking": False}) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['missing'] + 'x' }}", "missing"),
        ("{{ 'a' + 1 }}", "fails on these messages"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
    ],
)
def test_a_template_that_fails_says_so(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source, {}).render(CHAT)


def test_an_invalid_template_and_an_empty_chat() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("ok\n{% if %}", {})
    with pytest.raises(ChatTemplateError, match="at least one message"):
        ChatTemplate("x", {}).render([])
