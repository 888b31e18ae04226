"""`peagle train`: prompts in, a P-EAGLE head out. Every phase resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from peagle.acceptance import Acceptance
from peagle.backends import select_backend
from peagle.errors import ConfigError, DatasetError
from peagle.files import make_folder, write_atomically
from peagle.models.llama import Decoder
from peagle.models.weights import WeightReader, weights_digest
from peagle.train.config import TrainConfig
from peagle.train.corpus import Corpus, CorpusSpec, Sample
from peagle.train.evaluate import teacher_forced_acceptance
from peagle.train.export import Provenance, export_head
from peagle.train.features import FeatureExtractor
from peagle.train.start import (
    choose_draft_vocab,
    draft_vocab_of,
    start_from_head,
    untrained_head,
)
from peagle.train.supervision import Supervisor
from peagle.train.trainer import Progress, Trainer
from peagle.train.transition import fit_transition

MIN_TARGET_LAYERS = 7
"""The least for which the default taps 2, n // 2 and n - 3 are three layers, ascending."""


class Listener(Protocol):
    """Hears how a run gets on."""

    def generating(self, done: int, total: int) -> None:
        """Answers generated so far."""

    def training(self, progress: Progress, total: int) -> None:
        """An iteration is over."""

    def fitting(self, done: int, total: int) -> None:
        """Iterations over the transition table so far."""


@dataclass(frozen=True)
class TrainResult:
    """What a run produced."""

    head: Path
    acceptance: Acceptance
    """On held-out greedy answers, teacher-forced."""
    draft_vocab_coverage: float
    """Share of the answers' tokens that the draft vocabulary holds."""
    iterations: int
    final_loss: float | None
    """`None` after a run that an older version finished."""


def train_head(
    target_folder: Path,
    out: Path,
    prompts: Sequence[Sequence[int]],
    mask_token_id: int,
    config: TrainConfig,
    listener: Listener,
    *,
    start: Path | None = None,
    device: str = "cpu",
    chat_template: str | None = None,
    prompt_source: str = "built-in prompts",
) -> TrainResult:
    """Trains a head for a target and writes it to `out / "head"`.

    Args:
        target_folder: Hugging Face folder of the target.
        out: the corpus, checkpoints, log and head go here; run again to resume.
        prompts: tokenized prompts, at least `config.num_answers`; the continuations of the last
            `config.heldout` are never trained on.
        mask_token_id: an id that ordinary text does not use; its embedding stays frozen.
        start: a head to go on with; by default the target's own last layers.
        chat_template: the template the prompts were made with, for the record.
        prompt_source: for the model card.

    Raises:
        PeagleError: a subclass; whatever was written before stays usable.
    """
    if len(prompts) < config.num_answers:
        raise DatasetError(
            f"{len(prompts)} prompts, expected at least num_answers {config.num_answers}",
            hint="give more prompts or lower --answers",
        )
    make_folder(out)
    longest = max(map(len, prompts[: config.num_answers])) + config.answer_len
    backend = select_backend(device, "auto")
    target = Decoder.load(target_folder, backend, max_position=longest)
    _check_target(target, target_folder, longest, config)
    target_sha256 = weights_digest(target_folder)
    target_ids = None if start is None else draft_vocab_of(start, target, mask_token_id, config)
    corpus = _corpus(target, out, prompts, target_sha256, config, listener)
    samples = corpus.samples()
    counts = corpus.token_counts(target.config.vocab_size)
    if target_ids is None:
        target_ids = choose_draft_vocab(counts, config.draft_vocab_size)
    supervisor = _supervisor(
        target_folder, target, target_ids, samples, mask_token_id, config, start
    )
    trained_on = samples[: -config.heldout]
    sources = {
        "target_sha256": target_sha256,
        "prompts_sha256": corpus.spec.prompts_sha256,
        "start_sha256": "none" if start is None else weights_digest(start),
    }
    trainer = Trainer(supervisor, trained_on, out, sources)
    trainer.run(lambda progress: listener.training(progress, config.iterations))
    transition = fit_transition(
        supervisor,
        trained_on,
        target_ids,
        config,
        lambda done: listener.fitting(done, config.transition_iterations),
    )
    folder = out / "head"
    provenance = Provenance(
        target_sha256=target_sha256,
        chat_template_sha256=_digest(chat_template) if chat_template is not None else None,
        taps=target.default_taps(),
        k_train=config.k_train,
        train_max_len=longest,
        mask_token_id=mask_token_id,
        vocab_size=target.config.vocab_size,
    )
    export_head(folder, supervisor.head, transition, target_ids, provenance)
    heldout = [
        s
        for s, greedy in list(zip(samples, corpus.greedy(), strict=True))[-config.heldout :]
        if greedy
    ]
    acceptance = teacher_forced_acceptance(
        supervisor,
        transition,
        heldout,
        torch.from_numpy(target_ids),
        config.k_train,
    )
    result = TrainResult(
        folder,
        acceptance,
        float(counts[target_ids].sum() / counts.sum()),
        trainer.iteration,
        trainer.loss,
    )
    card = model_card(target_folder.name, config, result, prompt_source, start)
    write_atomically(folder / "README.md", card.encode())
    return result


def _check_target(target: Decoder, folder: Path, longest: int, config: TrainConfig) -> None:
    """Refuses a target that this head cannot be trained for, before any work."""
    sizes = target.config
    if sizes.max_position < longest:
        raise ConfigError(
            f"a prompt of {longest - config.answer_len} tokens and {config.answer_len} new ones "
            f"are longer than the target's context {sizes.max_position}",
            hint="lower --answer-len or leave out long prompts",
        )
    if sizes.num_layers < MIN_TARGET_LAYERS:
        raise ConfigError(
            f"{folder}: the target has {sizes.num_layers} layers, expected at least "
            f"{MIN_TARGET_LAYERS}: a head reads the inputs of three of them",
            hint="choose a deeper target",
        )
    if sizes.num_layers < config.num_layers:
        raise ConfigError(
            f"num_layers is {config.num_layers}, expected at most the target's {sizes.num_layers}",
            hint="lower --layers: the head starts from the target's last layers",
        )


def _corpus(
    target: Decoder,
    out: Path,
    prompts: Sequence[Sequence[int]],
    target_sha256: str,
    config: TrainConfig,
    listener: Listener,
) -> Corpus:
    continued = [np.asarray(p).tolist() for p in prompts[: config.num_answers]]
    spec = CorpusSpec(
        target_sha256=target_sha256,
        num_answers=config.num_answers,
        answer_len=config.answer_len,
        greedy_share=config.greedy_share,
        temperature=config.temperature,
        seed=config.seed,
        batch=config.generation_batch,
        prompts_sha256=_digest(json.dumps(continued)),
    )
    corpus = Corpus(out / "corpus", spec)
    missing = sum(len(corpus.members(i)) for i in corpus.missing())
    done = config.num_answers - missing

    def progress(answers: int) -> None:
        nonlocal done
        done += answers
        listener.generating(done, config.num_answers)

    corpus.generate(target, prompts, progress)
    return corpus


def _supervisor(
    folder: Path,
    target: Decoder,
    target_ids: npt.NDArray[np.int64],
    samples: Sequence[Sample],
    mask_token_id: int,
    config: TrainConfig,
    start: Path | None,
) -> Supervisor:
    """A head at its start, and what it trains on."""
    sizes = target.config
    head = untrained_head(target, config)
    reader = WeightReader(folder, rename=lambda name: name.removeprefix("model."))
    table = (sizes.vocab_size, sizes.hidden_size)
    embedding = reader.take("embed_tokens.weight", table, torch.float32)
    lm_head = (
        embedding
        if sizes.tie_word_embeddings
        else reader.take("lm_head.weight", table, torch.float32)
    )
    rows = lm_head[torch.from_numpy(target_ids)]
    extractor = FeatureExtractor(
        target, target.default_taps(), rows, cache_bytes=int(config.feature_cache_gib * 2**30)
    )
    if start is not None:
        start_from_head(head, start)
    else:
        head.start_from_target(reader, sizes.num_layers)
        with torch.no_grad():
            head.lm_head.weight.copy_(rows)
            head.mask_hidden.copy_(extractor.mean_taps(samples[: config.batch]))
    return Supervisor(head, extractor, embedding, mask_token_id, config)


def model_card(
    target: str,
    config: TrainConfig,
    result: TrainResult,
    prompt_source: str,
    start: Path | None,
) -> str:
    """The head's README."""
    positions = ", ".join(f"{share:.3f}" for share in result.acceptance.accept_by_position)
    began = "the target's last layers" if start is None else f"the head `{start.name}`"
    table = (
        " `transition.safetensors` corrects a drafted\n"
        "token for the one before it; engines that do not know it draft without."
        if config.transition_rank
        else ""
    )
    recipe = "\n".join(f"* `{key}`: {value}" for key, value in asdict(config).items())
    return f"""# P-EAGLE head for {target}

A {config.num_layers}-layer P-EAGLE draft head in the vLLM parallel-drafting layout. It uses the
target's own embeddings, so no embeddings are stored.{table}

## Data

{config.num_answers} continuations of {config.answer_len} tokens that the target wrote itself
(past its end-of-sequence token), {config.greedy_share:.0%} of them greedily, the others at
temperature {config.temperature}. Prompts: {prompt_source}.
The draft vocabulary holds {result.draft_vocab_coverage:.1%} of their tokens.

## Numbers

{result.iterations} iterations, started from {began}. Teacher-forced on held-out greedy answers,
K = {config.k_train}: acceptance length {result.acceptance.acceptance_length or 1.0:.3f} (the extra
token counts), acceptance by position {positions}, over {result.acceptance.windows} windows.

## Recipe

{recipe}
"""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
