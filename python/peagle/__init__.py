"""peagle: speculative decoding with P-EAGLE heads, exact and checkable."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.errors import PeagleError
    from peagle.llm import LLM, CompletionOutput, RequestOutput
    from peagle.params import SamplingParams

__version__ = version("peagle")
__all__ = [
    "LLM",
    "CompletionOutput",
    "PeagleError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "peagle.llm",
    "CompletionOutput": "peagle.llm",
    "RequestOutput": "peagle.llm",
    "SamplingParams": "peagle.params",
    "PeagleError": "peagle.errors",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `peagle --help` need not wait for torch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'peagle' has no attribute {name!r}")
