"""Keyed noise in torch integer operators, equal to the core's to the bit.

Threefry2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1,
2, 3", SC11), as docs/exactness.md specifies it. A 32-bit word is an int64 in [0, 2^32): additions
are masked, so that nothing depends on how a device wraps signed words.
"""

from __future__ import annotations

from enum import IntEnum

import torch

Words = tuple[torch.Tensor, torch.Tensor]
"""Two int64 tensors of 32-bit words, of shapes that broadcast."""

_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_MASK = 0xFFFFFFFF


class Purpose(IntEnum):
    """What a stream of noise is for; two purposes never share a stream."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4


def threefry2x32(key: Words, counter: Words) -> Words:
    """The generator: two words from two words of key and two of counter, elementwise."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x0, x1 = (counter[0] + keys[0]) & _MASK, (counter[1] + keys[1]) & _MASK
    for injection in range(1, 6):
        for rotation in _ROTATIONS[(injection - 1) % 2]:
            x0 = (x0 + x1) & _MASK
            x1 = ((x1 << rotation) & _MASK | x1 >> (32 - rotation)) ^ x0
        x0 = (x0 + keys[injection % 3]) & _MASK
        x1 = (x1 + keys[(injection + 1) % 3] + injection) & _MASK
    return x0, x1


def noise_key(seed: int, sample: int, purpose: Purpose) -> Words:
    """The key of a request's stream: scalars.

    Args:
        seed: unsigned, 64 bits.
        sample: index among the samples of one prompt.
        purpose: what the stream is for.
    """
    word = torch.tensor
    return threefry2x32((word(seed & _MASK), word(seed >> 32)), (word(sample), word(int(purpose))))


def exponentials(bits: Words) -> torch.Tensor:
    """Standard exponentials, float64, from 64 uniform bits (upper word first).

    `v = (bits + 1/2) / 2^64` and `E = -ln(1 - v)`; above one half from the complement of `v`, so
    that neither rounds to 0 or 1.
    """
    high, low = bits
    above_half = high >> 31 == 1
    high = torch.where(above_half, high ^ _MASK, high).double()
    low = torch.where(above_half, low ^ _MASK, low).double()
    v = (high * 2.0**32 + low + 0.5) * 2.0**-64
    return -torch.where(above_half, v.log(), (-v).log1p())
