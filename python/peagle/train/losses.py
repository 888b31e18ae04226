"""Losses over the draft vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def kl_divergence(draft_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """KL(target || draft) of each row, up to the target's entropy: [rows].

    Args:
        draft_logits: [rows, draft_vocab_size].
        target_logits: the same shape: the target's logits of the draft vocabulary's tokens, so
            its distribution is renormalised over them.
    """
    target_probs = F.softmax(target_logits.float(), dim=-1)
    return -(target_probs * F.log_softmax(draft_logits.float(), dim=-1)).sum(-1)


def cross_entropy(draft_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the target's most likely token of the draft vocabulary: [rows]."""
    return F.cross_entropy(draft_logits.float(), target_logits.argmax(-1), reduction="none")


def mean_by_depth(losses: torch.Tensor, depths: torch.Tensor, decay: float) -> torch.Tensor:
    """The mean of losses [N], of which one at depth d weighs decay^d; 0 of none."""
    weights = decay ** depths.float()
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


LOSSES: dict[str, Loss] = {"kl": kl_divergence, "ce": cross_entropy}
