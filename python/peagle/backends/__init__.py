"""The seam between the models and a device: a handful of operators, one class per executor."""

from __future__ import annotations

import re

import torch

from peagle.backends.base import Array, Backend
from peagle.backends.torch_ops import TorchBackend
from peagle.errors import ConfigError

__all__ = ["Array", "Backend", "TorchBackend", "select_backend"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def select_backend(device: str, dtype: str) -> Backend:
    """The backend for a device.

    Args:
        device: `cpu` (our own row-invariant kernels), `cuda`, `cuda:N`, or `torch-cpu`, the
            plain torch operators on the CPU that serve as the oracle of the other two.
        dtype: `float32`, `bfloat16`, or `auto`: bfloat16.

    Raises:
        ConfigError: unknown device or dtype, or no such CUDA device.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not supported", hint="use auto, float32 or bfloat16")
    torch_dtype = DTYPES["bfloat16" if dtype == "auto" else dtype]
    if device == "cpu":
        from peagle.backends.cpu import CpuBackend

        return CpuBackend(torch_dtype)
    if device == "torch-cpu":
        return TorchBackend("cpu", torch_dtype)
    if match := re.fullmatch(r"cuda(?::([0-9]+))?", device):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(match[1] or 0) >= found:
            raise ConfigError(
                f"device {device!r}: torch finds {found} CUDA devices", hint="use cpu"
            )
        return TorchBackend(device, torch_dtype)
    raise ConfigError(f"device {device!r} is not supported", hint="use cpu, cuda or cuda:N")
