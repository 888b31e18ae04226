"""Threads and instruction set of the CPU kernels."""

from __future__ import annotations

from peagle import _core


def num_threads() -> int:
    """Threads that the CPU kernels use."""
    return _core.num_threads()


def set_num_threads(count: int) -> None:
    """Sets the threads of the CPU kernels, at least 1."""
    _core.set_num_threads(count)


def simd_level() -> str:
    """The instruction set chosen at run time."""
    return _core.simd_level()
