"""Threads and instruction set of the CPU kernels."""

from __future__ import annotations

import os

from peagle import _core
from peagle.arguments import integer
from peagle.errors import ConfigError

MAX_THREADS = 1024
VARIABLES = ("PEAGLE_NUM_THREADS", "OMP_NUM_THREADS")
"""The first one that is set counts."""

_was_set = False


def num_threads() -> int:
    """Threads that the CPU kernels use."""
    return _core.num_threads()


def set_num_threads(count: int) -> None:
    """Sets the threads of the CPU kernels, whatever the environment says.

    Raises:
        ConfigError: not 1 to 1024.
    """
    global _was_set
    integer("number of threads", count, 1, MAX_THREADS)
    _core.set_num_threads(count)
    _was_set = True


def follow_environment() -> None:
    """Takes the number of threads from the environment, once; all cores without.

    Raises:
        ConfigError: a variable holds no number from 1 to 1024.
    """
    name = next((n for n in VARIABLES if os.environ.get(n)), None)
    if _was_set or name is None:
        return
    text = os.environ[name]
    count = text.split(",")[0].strip()  # OpenMP allows a number for each level of nesting
    if not (count.isdecimal() and 1 <= int(count) <= MAX_THREADS):
        raise ConfigError(f"{name} is {text!r}, expected a number from 1 to {MAX_THREADS}")
    set_num_threads(int(count))


def simd_level() -> str:
    """The instruction set chosen at run time."""
    return _core.simd_level()
