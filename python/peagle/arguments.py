"""Constructors that refuse unknown arguments with a `PeagleError`, never silently."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, TypeVar

from peagle.errors import UnknownArgumentError

T = TypeVar("T", bound=type)


def strict_arguments(cls: T) -> T:
    """Class decorator: an unknown keyword raises `UnknownArgumentError` with the nearest name."""
    original = cls.__init__
    known = [n for n in inspect.signature(original).parameters if n != "self"]

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UnknownArgumentError(
                    f"{cls.__name__} has no argument {name!r}",
                    hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}",
                )
        original(self, *args, **kwargs)

    cls.__init__ = checked
    return cls
