"""Verification of one step: a torch logits tensor in, verdicts out.

The rules live in the Rust core (`peagle._core.verify`); this module checks what only torch knows
and hands the tensor over without a copy. Logits on another device stay there: the same draw in
torch operators reduces each row to its token, and the core walks the trees over the tokens.
Processors, log probabilities, rejection and block verification need whole rows, which are copied.
"""

from __future__ import annotations

import torch

from peagle import _core
from peagle.errors import ShapeMismatchError
from peagle.sampling.draw import draw

__all__ = ["Verdicts", "noise_bits", "verify", "verify_on_device"]

Verdicts = _core.Verdicts
noise_bits = _core.noise_bits

_DTYPE_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def verify(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """Verify each request's token tree by the scheduler's method.

    Args:
        plan: the plan whose forward pass gave the logits.
        logits: target logits of the plan's `logits_rows`, [L, V], float32, bfloat16 or float16.
            On the CPU they are contiguous and read in place; nothing may write them meanwhile.

    Returns:
        One verdict for each request with logits rows: emitted tokens (not cut at any end
        condition) and the number of accepted drafts. A row with NaN, positive infinity or no
        finite value is an error of its request alone.

    Raises:
        TypeError: another dtype.
        ValueError: another layout, or a device without values.
        ShapeMismatchError: not [L, V].
    """
    name = _DTYPE_NAMES.get(logits.dtype)
    if name is None:
        wanted = ", ".join(_DTYPE_NAMES.values())
        raise TypeError(f"logits are {logits.dtype}, expected one of {wanted}")
    if logits.is_meta:
        raise ValueError("logits are on the meta device, expected values")
    if logits.dim() != 2:
        raise ShapeMismatchError(f"logits have {logits.dim()} dimensions, expected 2")
    if logits.device.type != "cpu":
        if not plan.needs_logits:
            return verify_on_device(plan, logits)
        logits = logits.contiguous().cpu()
    if not logits.is_contiguous():
        raise ValueError(f"logits are not contiguous, strides {tuple(logits.stride())}")
    rows = logits.detach()
    bits = rows if name == "float32" else rows.view(torch.uint16)
    return _core.verify(plan, bits.numpy(), name)


def verify_on_device(plan: _core.Plan, logits: torch.Tensor) -> _core.Verdicts:
    """`verify` for logits [L, V] on any device: only token ids, flags and error codes leave it.

    Raises:
        ValueError: the plan needs its logits, not draws alone.
        ShapeMismatchError: another number of rows than the plan's.
    """
    rows = _core.row_parameters(plan)
    if len(logits) != len(rows.positions):
        raise ShapeMismatchError(
            f"number of logits rows is {len(logits)}, expected {len(rows.positions)}"
        )
    draws = draw(
        logits.detach(),
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.keys,
        rows.positions,
    )
    return _core.verify_drawn_rows(
        plan,
        draws.token_ids.int().cpu().numpy(),
        draws.near_ties.cpu().numpy(),
        draws.errors.cpu().numpy(),
    )
