"""Chat templates: Jinja in the sandbox and with the settings that model folders expect.

The conventions are those of Hugging Face's templates (``trim_blocks``, ``lstrip_blocks``,
``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes, ``{% generation %}``,
``{% break %}`` and ``{% continue %}``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from peagle.errors import ChatTemplateError


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}`` marks what the model wrote; we render its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Raises:
        ChatTemplateError: the source is not a valid template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile ``source``; ``special_tokens`` maps names such as ``bos_token`` to texts."""
        self.source = source
        self.special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid: line {error.lineno}: {error.message}"
            ) from None

    @property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 of the template's UTF-8 source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text of a chat.

        ``variables`` are further template variables, such as ``enable_thinking``.

        Raises:
            ChatTemplateError: there are no messages, or the template refuses them.
        """
        if not messages:
            raise ChatTemplateError("a chat needs at least one message")
        values: dict[str, object] = {"tools": None, "documents": None, **self.special_tokens}
        values.update(variables or {})
        values.update(messages=messages, add_generation_prompt=add_generation_prompt)
        try:
            return self._template.render(values)
        except TemplateError as error:
            raise ChatTemplateError(
                f"the chat template refuses these messages: {error.message}"
            ) from error
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # A message without a key that the template adds to a text ends here.
            raise ChatTemplateError(
                f"the chat template fails on these messages: {error}",
                hint='a message is {"role": "user", "content": "..."}',
            ) from error


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise for a prompt: unlike Jinja's own filter, without HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
