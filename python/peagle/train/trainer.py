"""The training loop: features on the fly, COD sampling, Muon and AdamW, exact resume."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peagle.errors import CheckpointError, TrainingDivergedError
from peagle.files import append_line, write_atomically
from peagle.train.config import TrainConfig
from peagle.train.corpus import Sample
from peagle.train.losses import LOSSES, mean_by_depth
from peagle.train.module import TrainableHead
from peagle.train.supervision import Supervisor, choose_samples

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Progress:
    """What an iteration reports."""

    iteration: int
    loss: float
    top1_by_depth: list[float | None]
    """Share of elements whose most likely token is the target's, by depth; `None` without any."""
    seconds: float


class Trainer:
    """Trains a head on samples; everything random follows from (seed, iteration)."""

    def __init__(
        self,
        supervisor: Supervisor,
        samples: Sequence[Sample],
        folder: Path,
        sources: Mapping[str, str],
    ) -> None:
        """
        Args:
            folder: checkpoints and the log go here.
            sources: digests of what the samples come from; a checkpoint with others is refused.
        """
        config = supervisor.config
        self.head = supervisor.head
        self._supervisor = supervisor
        self._samples = samples
        self._config = config
        self._folder = folder
        self._settings = {**asdict(config), "mask_token_id": supervisor.mask_token_id, **sources}
        self._optimizers = make_optimizers(self.head, config)
        self.iteration = 0
        self.loss: float | None = None
        """Of the last iteration."""
        self._resume()

    def run(self, report: Callable[[Progress], None] = lambda progress: None) -> None:
        """Trains up to `config.iterations`, saving a checkpoint now and then."""
        log = self._folder / "log.jsonl"
        while self.iteration < self._config.iterations:
            progress = self._iterate()
            report(progress)
            append_line(log, json.dumps(asdict(progress), allow_nan=False))
            if self.iteration % self._config.checkpoint_every == 0:
                self.save()
        self.save()

    def _iterate(self) -> Progress:
        started = time.perf_counter()
        config = self._config
        scale = learning_rate_scale(self.iteration, config)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * scale
            optimizer.zero_grad(set_to_none=True)
        loss, top1 = self._loss(choose_samples(self._samples, self.iteration, config))
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise TrainingDivergedError(
                f"iteration {self.iteration + 1}: the loss is {self.loss}, expected a finite one",
                hint="lower --matrix-lr and --other-lr, with another --out folder",
            )
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        self.iteration += 1
        return Progress(self.iteration, self.loss, top1, time.perf_counter() - started)

    def _loss(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, list[float | None]]:
        config = self._config
        generator = torch.Generator().manual_seed(config.seed * 7_368_787 + self.iteration)
        seen = self._supervisor.supervise(samples, generator)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.head.lm_head(seen.hidden)
        losses = LOSSES[config.loss](logits, seen.wanted)
        hits = (logits.argmax(-1) == seen.wanted.argmax(-1)).float()
        by_depth = [hits[seen.depths == d] for d in range(config.k_train)]
        top1 = [h.mean().item() if len(h) else None for h in by_depth]
        return mean_by_depth(losses, seen.depths, config.depth_decay), top1

    def save(self) -> None:
        """Writes a checkpoint, atomically."""
        state = {
            "iteration": self.iteration,
            "loss": self.loss,
            "config": self._settings,
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        write_atomically(self._folder / CHECKPOINT, lambda file: torch.save(state, file))

    def _resume(self) -> None:
        path = self._folder / CHECKPOINT
        if not path.exists():
            return
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}", hint="delete it to start over"
            ) from error
        wanted = self._settings
        differing = [k for k, v in state["config"].items() if wanted.get(k) != v]
        if differing:
            key = differing[0]
            raise CheckpointError(
                f"{path}: trained with {key} {state['config'][key]!r}, this run asks for "
                f"{wanted.get(key)!r}",
                hint="use the same options to resume, or another --out folder",
            )
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.iteration = state["iteration"]
        self.loss = state.get("loss")


def make_optimizers(head: TrainableHead, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers and `fc`, AdamW for the rest."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in head.named_parameters():
        is_matrix = parameter.ndim == 2 and not name.startswith("lm_head")
        (matrices if is_matrix else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=config.matrix_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return [muon, adamw]


def learning_rate_scale(iteration: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine from 1 to 0.1."""
    if iteration < config.warmup:
        return (iteration + 1) / config.warmup
    done = (iteration - config.warmup) / max(1, config.iterations - config.warmup)
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * min(done, 1.0)))
