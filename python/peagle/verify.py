"""Verification of one step: a torch logits tensor in, verdicts out.

The rules live in the Rust core (`peagle._core.verify`); this module checks what only torch knows
and hands the tensor over without a copy.
"""

from __future__ import annotations

import torch

from peagle import _core
from peagle.errors import ShapeMismatchError

__all__ = ["Verdicts", "verify"]

Verdicts = _core.Verdicts

_DTYPE_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def verify(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """Walk each request's token tree with the target's own draws.

    Args:
        plan: the plan whose forward pass gave the logits.
        logits: target logits of the plan's `logits_rows`, [L, V], float32, bfloat16 or float16,
            contiguous, on the CPU. They are read in place; nothing may write them meanwhile.

    Returns:
        One verdict for each request with logits rows: emitted tokens (not cut at any end
        condition) and the number of accepted drafts. A row with NaN, positive infinity or no
        finite value is an error of its request alone.

    Raises:
        TypeError: another dtype.
        ValueError: another device or layout.
        ShapeMismatchError: not [L, V].
    """
    name = _DTYPE_NAMES.get(logits.dtype)
    if name is None:
        wanted = ", ".join(_DTYPE_NAMES.values())
        raise TypeError(f"logits are {logits.dtype}, expected one of {wanted}")
    if logits.device.type != "cpu":
        raise ValueError(f"logits are on {logits.device}, expected the CPU")
    if logits.dim() != 2:
        raise ShapeMismatchError(f"logits have {logits.dim()} dimensions, expected 2")
    if not logits.is_contiguous():
        raise ValueError(f"logits are not contiguous, strides {tuple(logits.stride())}")
    rows = logits.detach()
    bits = rows if name == "float32" else rows.view(torch.uint16)
    return _core.verify(plan, bits.numpy(), name)
