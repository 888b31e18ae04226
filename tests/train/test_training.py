"""A trained head drafts what training saw; training resumes exactly; failures leave no debris."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.backends import select_backend
from peagle.errors import CheckpointError, ConfigError, DatasetError, FileWriteError
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.propose.once import drafts_from_scratch
from peagle.train.cod import Elements
from peagle.train.config import TrainConfig
from peagle.train.corpus import Sample
from peagle.train.evaluate import teacher_forced_acceptance
from peagle.train.export import Provenance, export_head
from peagle.train.features import FeatureExtractor, stack_elements
from peagle.train.module import HeadShape, TrainableHead
from peagle.train.run import TrainResult, choose_draft_vocab, train_head
from tests.tiny import MASK_TOKEN, VOCAB, make_target, random_ids

CONFIG = TrainConfig(
    num_layers=2,
    draft_vocab_size=60,
    k_train=4,
    num_answers=12,
    answer_len=24,
    generation_batch=5,
    heldout=3,
    iterations=6,
    batch=2,
    warmup=2,
    checkpoint_every=2,
    greedy_share=0.8,
    feature_cache_gib=0.001,
)


class Silent:
    """Hears and says nothing; may raise at an iteration, as a kill would."""

    def __init__(self, stop_at: int | None = None) -> None:
        self._stop_at = stop_at
        self.iterations: list[int] = []

    def generating(self, done: int, total: int) -> None:
        """Nothing."""

    def training(self, progress: Any, total: int) -> None:
        """Stops where it was told to."""
        self.iterations.append(progress.iteration)
        if progress.iteration == self._stop_at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return folder


def prompts() -> list[list[int]]:
    """Tokenized prompts."""
    return [random_ids(5 + i % 7, seed=i) for i in range(CONFIG.num_answers)]


def run(target: Path, out: Path, config: TrainConfig = CONFIG, **more: Any) -> TrainResult:
    """A whole training run."""
    listener = more.pop("listener", Silent())
    return train_head(target, out, prompts(), MASK_TOKEN, config, listener, **more)


def test_a_run_writes_a_head_that_loads_and_says_what_it_is(
    target_folder: Path, tmp_path: Path
) -> None:
    result = run(target_folder, tmp_path / "out")
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    head = PEagleHead.load(result.head, target, max_position=64)
    assert head.config.k_train == 4
    assert head.config.mask_token_id == MASK_TOKEN
    assert head.config.draft_vocab_size == 60
    assert result.acceptance.windows > 0
    assert "acceptance length" in (result.head / "README.md").read_text()
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [entry["iteration"] for entry in log] == list(range(1, 7))


def test_a_killed_run_resumes_to_the_same_head(target_folder: Path, tmp_path: Path) -> None:
    whole = run(target_folder, tmp_path / "whole")
    listener = Silent(stop_at=5)
    with pytest.raises(KeyboardInterrupt):
        run(target_folder, tmp_path / "cut", listener=listener)
    resumed = Silent()
    again = run(target_folder, tmp_path / "cut", listener=resumed)
    assert resumed.iterations == [5, 6]  # from the checkpoint after iteration 4
    weights = [(r.head / "model.safetensors").read_bytes() for r in (whole, again)]
    assert weights[0] == weights[1]


def test_other_options_do_not_resume(target_folder: Path, tmp_path: Path) -> None:
    run(target_folder, tmp_path / "out")
    with pytest.raises(CheckpointError, match="other_lr"):
        run(target_folder, tmp_path / "out", replace(CONFIG, other_lr=1e-5))
    with pytest.raises(DatasetError, match="answer_len"):
        run(target_folder, tmp_path / "out", replace(CONFIG, answer_len=9))


def test_too_few_prompts_are_refused(target_folder: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, num_answers=13)
    with pytest.raises(DatasetError, match="12 prompts, expected at least num_answers 13"):
        run(target_folder, tmp_path / "out", config)


@pytest.mark.parametrize(
    "change", [{"iterations": 0}, {"cod_ratio": 0.0}, {"loss": "mse"}, {"heldout": 12}], ids=str
)
def test_unusable_options_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(CONFIG, **change)


def test_a_full_disk_while_training_leaves_the_last_checkpoint(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(target_folder, out, replace(CONFIG, iterations=2))
    before = (out / "checkpoint.pt").read_bytes()
    config = replace(CONFIG, iterations=2)
    (out / "head" / "model.safetensors").unlink()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileWriteError, match="No space left"):
        run(target_folder, out, config)
    assert (out / "checkpoint.pt").read_bytes() == before
    assert not (out / "head" / "model.safetensors").exists()
    assert not [p for p in out.rglob(".*") if p.is_file()]


def tiny_parts(target_folder: Path, tmp_path: Path) -> Any:
    """A random trainable head and its export, loaded for inference in float32."""
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    sizes = target.config
    torch.manual_seed(4)
    shape = HeadShape(
        sizes.hidden_size, 96, 3, sizes.attention, sizes.rope, sizes.rms_norm_eps, 3, 60
    )
    trainable = TrainableHead(shape)
    with torch.no_grad():
        for parameter in trainable.parameters():
            # bfloat16 values survive the export unchanged.
            noise = torch.randn(parameter.shape) * (1.5 / parameter.shape[-1] ** 0.5)
            parameter.copy_((noise if parameter.ndim > 1 else 1 + 0.2 * noise).bfloat16().float())
    target_ids = choose_draft_vocab(np.random.default_rng(0).permutation(VOCAB), 60)
    provenance = Provenance("", None, target.default_taps(), 4, 64, MASK_TOKEN, VOCAB)
    export_head(tmp_path / "head", trainable, target_ids, provenance, "")
    head = PEagleHead.load(tmp_path / "head", target, max_position=128)
    return target, trainable, head, target_ids


def test_the_training_forward_drafts_what_inference_drafts(
    target_folder: Path, tmp_path: Path
) -> None:
    target, trainable, head, target_ids = tiny_parts(target_folder, tmp_path)
    ids = np.asarray(random_ids(30), np.int32)
    rows = torch.randn(60, target.config.hidden_size)
    features = FeatureExtractor(target, target.default_taps(), rows).extract([Sample(ids, 4)])
    anchors = torch.arange(29).repeat(4)
    depths = torch.arange(4).repeat_interleave(29)
    batch = stack_elements([Elements(anchors, depths, torch.ones(116, dtype=torch.bool))])
    embedding = target.embed_tokens
    inputs = torch.where(batch.depths > 0, MASK_TOKEN, features.token_ids[0][batch.anchors + 1])
    with torch.no_grad():
        hidden = trainable(
            features.taps, embedding[inputs], batch.anchors, batch.depths, batch.mask
        )
        guesses = target_ids[trainable.lm_head(hidden)[0].argmax(-1).numpy()].reshape(4, 29)
    for anchor in range(29):
        drafts = drafts_from_scratch(target, head, ids[: anchor + 2], 4)
        assert drafts == guesses[:, anchor].tolist()


def test_teacher_forced_acceptance_equals_a_walk_with_real_drafts(
    target_folder: Path, tmp_path: Path
) -> None:
    target, trainable, head, target_ids = tiny_parts(target_folder, tmp_path)
    ids = list(random_ids(40))
    position, windows, accepted = 6, 0, 0
    # A text that agrees with some drafts, so that runs of several lengths occur.
    for step in range(5):
        start = 8 + 6 * step
        drafts = drafts_from_scratch(target, head, np.asarray(ids[:start], np.int32), 4)
        ids[start : start + step] = drafts[:step]
    tokens = np.asarray(ids, np.int32)
    while position < len(ids) - 1 - 4:
        drafts = drafts_from_scratch(target, head, tokens[: position + 2], 4)
        truth = ids[position + 2 : position + 6]
        run_length = next((i for i in range(4) if drafts[i] != truth[i]), 4)
        windows, accepted, position = windows + 1, accepted + run_length, position + run_length + 1
    rows = torch.zeros(60, target.config.hidden_size)
    found = teacher_forced_acceptance(
        trainable,
        FeatureExtractor(target, target.default_taps(), rows),
        [Sample(tokens, 7)],
        target.embed_tokens,
        torch.from_numpy(target_ids),
        MASK_TOKEN,
        4,
        autocast=False,
    )
    assert accepted > 4
    assert found.windows == windows
    assert found.acceptance_length == pytest.approx(1 + accepted / windows)
