"""Teacher-forced acceptance of a head on held-out answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from peagle.acceptance import Acceptance
from peagle.train.cod import Elements
from peagle.train.corpus import Sample
from peagle.train.features import stack_elements
from peagle.train.supervision import Supervisor
from peagle.train.transition import TransitionTable


@torch.no_grad()
def teacher_forced_acceptance(
    supervisor: Supervisor,
    transition: TransitionTable | None,
    samples: Sequence[Sample],
    target_ids: torch.Tensor,
    k: int,
    *,
    autocast: bool = True,
) -> Acceptance:
    """Walks each answer as the engine would: a window of K drafts, then on by what was accepted.

    Hidden states come from the true text, which is what the engine feeds as well, so this equals
    live greedy acceptance up to the target's own numerics.

    Args:
        supervisor: of the head to be measured.
        transition: its table, if it has one.
        samples: greedy answers.
        target_ids: [draft_vocab_size] target ids of the draft ids.
        autocast: run the head's matrix products in bfloat16, as it will be exported.
    """
    accepted = torch.zeros(k, dtype=torch.int64)
    windows = 0
    for sample in samples:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            runs = _runs(supervisor, transition, sample, target_ids, k)
        position = sample.prompt_len - 1
        while position < len(runs):
            run = int(runs[position])
            accepted[:run] += 1
            windows += 1
            position += run + 1
    return Acceptance(windows, tuple(accepted.tolist()))


def _runs(
    supervisor: Supervisor,
    transition: TransitionTable | None,
    sample: Sample,
    target_ids: torch.Tensor,
    k: int,
) -> torch.Tensor:
    """Length of the accepted prefix for a window that starts behind each anchor: [anchors]."""
    features = supervisor.extractor.extract([sample])
    ids = features.token_ids[0]
    anchors = torch.arange(len(ids) - 1 - k)
    depth = torch.arange(k)
    elements = Elements(
        anchors=torch.cat([torch.arange(len(ids) - 1)] + [anchors] * (k - 1)),
        depths=torch.cat(
            [torch.zeros(len(ids) - 1, dtype=torch.int64)]
            + [torch.full_like(anchors, d) for d in range(1, k)]
        ),
        supervised=torch.ones(len(ids) - 1 + len(anchors) * (k - 1), dtype=torch.bool),
    )
    batch = stack_elements([elements])
    logits = supervisor.head.lm_head(supervisor.hidden(features, batch))[0].float()
    drafts = [logits[: len(anchors)].argmax(-1)]
    for row in logits[len(ids) - 1 :].view(k - 1, len(anchors), -1):
        added = 0.0 if transition is None else transition(drafts[-1]).float()
        drafts.append((row + added).argmax(-1))
    guesses = target_ids[torch.stack(drafts)]
    truth = ids[anchors[None] + depth[:, None] + 2]
    return (guesses == truth).cumprod(0).sum(0)
