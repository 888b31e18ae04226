"""Text to token ids and back, from the tokenizer files of a model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import tokenizers

from peagle.arguments import is_integer
from peagle.chat_template import ChatTemplate
from peagle.errors import BadWordError, ChatTemplateError, TokenizerError

TOKENIZER_FILE: Final = "tokenizer.json"
_NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """The tokenizer of a model folder.

    ``tokenizer.json`` decides how text is split; a truncation or padding stored in it is
    switched off, since a prompt is never shortened silently.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        named_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Wrap a ``tokenizers.Tokenizer``.

        ``named_tokens`` maps names such as ``eos_token`` to token texts; an ``eos_token`` is one
        more end-of-sequence id beside ``eos_token_ids``.

        Raises:
            TokenizerError: a named token is not in the vocabulary.
            ChatTemplateError: the chat template is not valid.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.named_tokens = dict(named_tokens or {})
        ids = dict.fromkeys(eos_token_ids)
        if "eos_token" in self.named_tokens:
            ids[self._named_id("eos_token")] = None
        self.eos_token_ids: tuple[int, ...] = tuple(ids)
        self.special_ids: frozenset[int] = frozenset(
            index for index, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.chat_template = (
            None if chat_template is None else ChatTemplate(chat_template, self.named_tokens)
        )

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read the tokenizer of a Hugging Face model folder.

        Raises:
            TokenizerError: a file is missing or malformed; names it.
            ChatTemplateError: the chat template is not valid.
        """
        folder = Path(folder)
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise TokenizerError(
                f"{folder} has no {TOKENIZER_FILE}",
                hint="add the model's tokenizer.json",
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise TokenizerError(f"{path} cannot be read: {error}") from error
        config = _read_object(folder / "tokenizer_config.json")
        return cls(
            backend,
            eos_token_ids=read_eos_token_ids(folder),
            named_tokens=_named_tokens(folder, config),
            chat_template=_chat_template(folder, config),
        )

    @property
    def vocab_size(self) -> int:
        """How many ids have a token; a model's own number may be higher (padding)."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int | None:
        """The id of the named end-of-sequence token, else the first known one."""
        if "eos_token" in self.named_tokens:
            return self._named_id("eos_token")
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written in it are recognised.

        ``add_special_tokens`` adds what ``tokenizer.json`` puts around a text (such as BOS).

        Raises:
            TokenizerError: the text holds a lone surrogate, which no encoding can carry.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text has a lone surrogate at character {error.start}"
            ) from None
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def word_ids(self, word: str) -> list[list[int]]:
        """Return a word's token ids at the start of a text and, if they differ, after a space.

        Raises:
            BadWordError: the word has no token.
        """
        word = word.lstrip()
        forms = [self.encode(text, add_special_tokens=False) for text in (word, " " + word)]
        if not word or not all(forms):
            raise BadWordError(f"bad_words has {word!r}, expected words of at least one token")
        return forms[: 1 + (forms[1] != forms[0])]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids without a token add nothing."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it, or None for an id without a token."""
        return self.backend.id_to_token(token_id)

    def token_id(self, text: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None."""
        return self.backend.token_to_id(text)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text of a chat by the folder's template.

        Raises:
            ChatTemplateError: there is no template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                "this model has no chat template",
                hint="give raw text or token ids, or add a chat template to the folder",
            )
        return self.chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the token ids of a chat; nothing is added around the template's own tokens."""
        text = self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return self.encode(text, add_special_tokens=False)

    def _named_id(self, name: str) -> int:
        text = self.named_tokens[name]
        index = self.token_id(text)
        if index is None:
            raise TokenizerError(f"the {name} {text!r} is not in the vocabulary")
        return index


def read_eos_token_ids(folder: str | Path) -> tuple[int, ...]:
    """Return a model folder's end-of-sequence ids; works without tokenizer files.

    ``generation_config.json`` decides where it names any, else ``config.json``.

    Raises:
        TokenizerError: a file is malformed.
    """
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        config = _read_object(path)
        value = config.get("eos_token_id")
        if value is None:
            text_config = config.get("text_config")
            value = text_config.get("eos_token_id") if isinstance(text_config, dict) else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(is_integer(index, 0, 2**31 - 1) for index in ids):
            raise TokenizerError(f"{path}: eos_token_id must be an id or a list of ids: {value!r}")
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return value


def _named_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Collect bos_token and the like; the tokenizer's own configuration wins."""
    named: dict[str, str] = {}
    for source in (_read_object(folder / "special_tokens_map.json"), config):
        for name in _NAMED_TOKENS:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                named[name] = text
    return named


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the template's source: its own file wins over the tokenizer's configuration."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path} cannot be read: {error}") from error
    value = config.get("chat_template")
    if value is None:
        value = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(value, list):  # several named ones
        named = {part.get("name"): part.get("template") for part in value if isinstance(part, dict)}
        value = named.get("default")
    if value is None or isinstance(value, str):
        return value
    raise TokenizerError(
        f"the chat_template of {folder} must be a text, not {type(value).__name__}"
    )
