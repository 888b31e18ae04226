"""Arguments are honoured or refused with a `PeagleError`, never dropped silently."""

from __future__ import annotations

import difflib
import functools
import inspect
from numbers import Integral
from typing import Any, TypeVar

from peagle.errors import ConfigError, UnknownArgumentError

T = TypeVar("T", bound=type)


def strict_arguments(cls: T) -> T:
    """Class decorator: an unknown keyword raises `UnknownArgumentError` with the nearest name."""
    original = cls.__init__  # type: ignore[misc]
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

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def integer(name: str, value: object, low: int, high: int) -> None:
    """Raises `ConfigError` unless `value` is an integer from `low` to `high`."""
    if not is_integer(value, low, high):
        raise ConfigError(f"{name} is {value!r}, expected an integer from {low} to {high}")


def is_integer(value: object, low: int, high: int) -> bool:
    """Whether `value` is an integer from `low` to `high`; `True` and `False` are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return low <= int(value) <= high
