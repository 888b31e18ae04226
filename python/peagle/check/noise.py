"""The noise specification's test vectors, for anyone who implements it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch

from peagle.sampling.noise import Purpose, exponentials, noise_key, threefry2x32
from peagle.verify import noise_bits


@dataclass(frozen=True)
class GeneratorVector:
    """Threefry2x32-20: two words of each."""

    key: list[int]
    counter: list[int]
    result: list[int]


@dataclass(frozen=True)
class StreamVector:
    """The noise of one token of one request."""

    seed: int
    sample: int
    purpose: Purpose
    token_id: int
    position: int
    bits: int
    exponential: float


@dataclass(frozen=True)
class NoiseVectors:
    """All vectors of the specification."""

    generator: list[GeneratorVector]
    streams: list[StreamVector]


def load_vectors() -> NoiseVectors:
    """The vectors in `noise_vectors.json`; words and bits are hexadecimal there."""
    text = (files("peagle.check") / "noise_vectors.json").read_text(encoding="utf-8")
    tables: dict[str, list[dict[str, Any]]] = json.loads(text)
    generator = [
        GeneratorVector(**{name: [int(word, 16) for word in words] for name, words in row.items()})
        for row in tables["generator"]
    ]
    streams = [
        StreamVector(
            seed=int(row["seed"], 16),
            sample=row["sample"],
            purpose=Purpose(row["purpose"]),
            token_id=row["token_id"],
            position=row["position"],
            bits=int(row["bits"], 16),
            exponential=row["exponential"],
        )
        for row in tables["streams"]
    ]
    return NoiseVectors(generator, streams)


def mismatches(vectors: NoiseVectors) -> int:
    """How many vectors the core or the torch implementation misses."""
    wrong = 0
    for vector in vectors.generator:
        (k0, k1), (c0, c1) = vector.key, vector.counter
        made = threefry2x32(
            (torch.tensor(k0), torch.tensor(k1)), (torch.tensor(c0), torch.tensor(c1))
        )
        wrong += [int(word) for word in made] != vector.result
    for stream in vectors.streams:
        core = noise_bits(
            stream.seed,
            stream.sample,
            stream.purpose,
            np.array([stream.token_id], np.uint32),
            np.array([stream.position], np.uint32),
        )
        key = noise_key(stream.seed, stream.sample, stream.purpose)
        words = threefry2x32(key, (torch.tensor(stream.token_id), torch.tensor(stream.position)))
        high, low = (int(word) for word in words)
        wrong += not stream.bits == int(core[0]) == high << 32 | low
        wrong += abs(float(exponentials(words)) / stream.exponential - 1.0) > 1e-15
    return wrong
