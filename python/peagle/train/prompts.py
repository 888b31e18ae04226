"""The built-in training prompts: templates over topics and the standard library's documentation.

No prompt comes from a data set, so there is no licence question, and the demo prompts and the
benchmark sets stay out of training. The same count and seed give the same prompts under the same
Python version (the documentation is that of the running interpreter).
"""

from __future__ import annotations

from random import Random
from typing import Final

from peagle.errors import DatasetError
from peagle.train.prompt_templates import CATEGORIES, Category
from peagle.train.stdlib_docs import stdlib_entries

# What the demo prompts are about: no training prompt may contain these words.
HELD_OUT: Final = ("the sky", "fibonacci", "garage")

MAX_COUNT: Final = 50_000
_MAX_TRIES: Final = 50

_SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You are a patient teacher. Explain things clearly.",
    "You are a concise assistant. Answer briefly.",
    "You are a friendly expert who likes examples.",
    "You are a writing assistant.",
    "You are an experienced Python programmer.",
)
_SYSTEM_SHARE: Final = 0.04


def training_prompts(count: int, seed: int) -> list[list[dict[str, str]]]:
    """Return ``count`` distinct prompts as chat messages that end with a user message.

    Raises:
        DatasetError: ``count`` is negative or above ``MAX_COUNT``, beyond which the templates
            would repeat themselves too often.
    """
    if not 0 <= count <= MAX_COUNT:
        raise DatasetError(
            f"{count} built-in prompts asked for, expected 0 to {MAX_COUNT}",
            hint="give prompts of your own with --prompts, or lower --answers",
        )
    rng = Random(seed)
    weights = _usable_categories()
    seen: set[str] = set()
    prompts: list[list[dict[str, str]]] = []
    while len(prompts) < count:
        category = rng.choices(list(weights), list(weights.values()))[0]
        text = _new_text(category, rng, seen)
        if text is None:
            del weights[category]  # used up
            continue
        seen.add(_key(text))
        messages = [{"role": "user", "content": text}]
        if rng.random() < _SYSTEM_SHARE:
            messages.insert(0, {"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)})
        prompts.append(messages)
    return prompts


def _usable_categories() -> dict[Category, int]:
    """Return the categories with their shares, without those that need missing documentation."""
    has_docs = bool(stdlib_entries())
    return {
        category: share
        for category, share in CATEGORIES
        if has_docs or not category.__name__.startswith("doc_")
    }


def _new_text(category: Category, rng: Random, seen: set[str]) -> str | None:
    """Return a text of this category that is neither seen nor held out, or None."""
    for _ in range(_MAX_TRIES):
        text = category(rng).strip()
        key = _key(text)
        if key not in seen and not any(word in key for word in HELD_OUT):
            return text
    return None


def _key(text: str) -> str:
    """Fold case and white space, so that texts that differ only there count as one."""
    return " ".join(text.lower().split())
