"""The target's own draw from rows of logits, on the device that holds them.

The rule is that of the core's `distribution::draw`: temperature, min_p, top_k, top_p, then an
exponential race over keyed noise; temperature 0 takes the largest logit. Ties go to the lowest id.
Every row shrinks to three small numbers, the only ones that need to leave the device. The race is
decided in float64; a device with other logarithms than the core's can choose another winner only
where the two best scores differ by rounding, and all within 1e-6 are counted as near ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from peagle.sampling.noise import exponentials, threefry2x32

NAN, INFINITE, MASKED = 1, 2, 3
"""Why a row has no draw: a NaN, positive infinity, or no finite logit in it."""


@dataclass(frozen=True)
class Draws:
    """What L rows shrank to, on the device of the logits."""

    token_ids: torch.Tensor
    """int64 [L]; arbitrary where there is an error."""
    near_ties: torch.Tensor
    """bool [L]: another token's score came within 1e-6 (relative) of the winner's."""
    errors: torch.Tensor
    """uint8 [L]: 0, or `NAN`, `INFINITE` or `MASKED`."""


@dataclass(frozen=True)
class _Rows:
    """Parameters of the sampled rows, each [S, 1] on the device."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: tuple[torch.Tensor, torch.Tensor]
    positions: torch.Tensor


def draw(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float64],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float64],
    min_p: npt.NDArray[np.float64],
    keys: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.int32],
) -> Draws:
    """Draws one token from each row.

    The parameters lie on the host, so that what no row asks for is not launched.

    Args:
        logits: [L, V], float32, bfloat16 or float16, any device.
        temperature: [L], 0 is greedy.
        top_k: [L], 0 keeps all.
        top_p: [L], 1 keeps all.
        min_p: [L], 0 keeps all.
        keys: [L, 2], the words of the noise keys.
        positions: [L], absolute positions of the tokens drawn.
    """
    values = logits.float()
    largest = values.amax(dim=1)  # NaN if there is one
    # Of several largest, `argmax` gives the first.
    token_ids = values.argmax(dim=1)
    near_ties = torch.zeros_like(token_ids, dtype=torch.bool)
    errors = (
        largest.isnan() * NAN + (largest == torch.inf) * INFINITE + (largest == -torch.inf) * MASKED
    )
    sampled = np.flatnonzero(temperature > 0.0)
    if len(sampled):

        def column(array: npt.NDArray[Any]) -> torch.Tensor:
            wide = array[sampled].astype(np.float64 if array.dtype.kind == "f" else np.int64)
            return torch.from_numpy(wide)[:, None].to(logits.device)

        rows = _Rows(
            temperature=column(temperature),
            top_k=column(top_k),
            top_p=column(top_p),
            min_p=column(min_p),
            keys=(column(keys[:, 0]), column(keys[:, 1])),
            positions=column(positions),
        )
        columns = _columns(top_k[sampled], top_p[sampled], logits.shape[1])
        index = torch.from_numpy(sampled).to(logits.device)
        token_ids[index], near_ties[index] = _race(values[index], rows, columns)
    return Draws(token_ids, near_ties, errors.to(torch.uint8))


def _columns(
    top_k: npt.NDArray[np.int64], top_p: npt.NDArray[np.float64], vocab: int
) -> int | None:
    """How many of the best tokens of a row can be drawn at most; None where no order is needed."""
    cut = (top_k > 0) & (top_k < vocab)
    if not (cut | (top_p < 1.0)).any():
        return None
    return int(np.where(cut, top_k, vocab).max())


def _race(
    values: torch.Tensor, rows: _Rows, columns: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Winners and near ties of sampled rows, [S, V] float32."""
    largest = values.amax(dim=1, keepdim=True)
    if columns is None:
        token_ids = torch.arange(values.shape[1], device=values.device)[None]
    else:
        token_ids = _best(values, columns)
        values = values.gather(1, token_ids)
    exact = values.double()
    weights = ((exact - largest.double()) / rows.temperature).exp()
    least = largest.double() + rows.temperature * rows.min_p.log()
    kept = (exact >= least) | (values == largest)
    if columns is not None:
        kept &= _truncated(weights * kept, rows)
    noise = exponentials(threefry2x32(rows.keys, (token_ids, rows.positions)))
    scores = torch.where(kept & (weights > 0.0), noise / weights, torch.inf)
    best = scores.amin(dim=1, keepdim=True)
    winners = torch.where(scores == best, token_ids, torch.iinfo(torch.int64).max).amin(dim=1)
    close = (scores <= best * (1.0 + 1e-6)).sum(dim=1) > 1
    return winners, close


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` best tokens, [S, count], best first; of equal logits the lower id wins.

    Logit and id become one integer, so that there are no ties for the device to break.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0: minus zero equals zero
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(values.shape[1], device=values.device)
    ranked = (ascending << 32) + (0xFFFFFFFF - ids)
    return 0xFFFFFFFF - (ranked.topk(count, dim=1).values & 0xFFFFFFFF)


def _truncated(weights: torch.Tensor, rows: _Rows) -> torch.Tensor:
    """Which tokens `top_k` and then `top_p` keep, of weights [S, C] in ranking order."""
    rank = torch.arange(weights.shape[1], device=weights.device)[None]
    kept = (rank < rows.top_k) | (rows.top_k == 0)
    weights = weights * kept
    reached = weights.cumsum(dim=1)
    wanted = torch.where(rows.top_p < 1.0, rows.top_p * reached[:, -1:], torch.inf)
    return kept & (reached - weights < wanted)
