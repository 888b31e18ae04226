"""A trained head drafts what training saw; training resumes exactly; failures leave no debris."""

from __future__ import annotations

import errno
import json
import os
import resource
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.backends import select_backend
from peagle.errors import FileWriteError
from peagle.files import append_line
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.propose.once import drafts_from_scratch
from peagle.train import run as run_module
from peagle.train.cod import Elements
from peagle.train.corpus import Sample
from peagle.train.evaluate import teacher_forced_acceptance
from peagle.train.export import Provenance, export_head
from peagle.train.features import FeatureExtractor, stack_elements
from peagle.train.module import HeadShape, TrainableHead
from peagle.train.start import choose_draft_vocab
from peagle.train.supervision import Supervisor
from peagle.train.transition import TransitionTable
from tests.tiny import HIDDEN, MASK_TOKEN, VOCAB, random_ids
from tests.train.tiny_run import CONFIG, Silent, run


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


def test_a_finished_run_says_the_same_again(target_folder: Path, tmp_path: Path) -> None:
    first = run(target_folder, tmp_path / "out")
    again = run(target_folder, tmp_path / "out")
    assert again == first
    assert (
        again.final_loss
        == json.loads((tmp_path / "out" / "log.jsonl").read_text().split("\n")[5])["loss"]
    )
    json.dumps(asdict(again) | {"head": ""}, allow_nan=False)


def test_the_log_is_json_when_a_depth_has_no_elements(target_folder: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, answer_len=5, cod_ratio=0.1, iterations=4)
    run(target_folder, tmp_path / "out", config)
    log = (tmp_path / "out" / "log.jsonl").read_text()
    assert "NaN" not in log
    assert None in [
        share for line in log.splitlines() for share in json.loads(line)["top1_by_depth"]
    ]


def test_a_head_is_written_even_if_it_cannot_be_measured(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any, **settings: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "teacher_forced_acceptance", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            run(target_folder, tmp_path / "out")
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    PEagleHead.load(tmp_path / "out" / "head", target, max_position=64)
    listener = Silent()
    assert run(target_folder, tmp_path / "out", listener=listener).acceptance.windows > 0
    assert listener.iterations == []


def test_the_mean_of_taps_leaves_padding_out(target_folder: Path) -> None:
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    extractor = FeatureExtractor(target, target.default_taps(), torch.zeros(4, HIDDEN))
    samples = [Sample(np.asarray(random_ids(n, seed=n), np.int32), 2) for n in (3, 30, 11)]
    alone = torch.cat([extractor.extract([s]).taps[0] for s in samples])
    torch.testing.assert_close(extractor.mean_taps(samples), alone.mean(0))


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


def test_a_full_disk_at_the_log_is_one_clear_error(target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(FileWriteError, match=r"log\.jsonl cannot be written: No space left"):
        run(target_folder, tmp_path)


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, "first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9, limits[1]))
    try:
        with pytest.raises(FileWriteError, match="File too large"):
            append_line(path, "a longer line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "first\n"


def tiny_parts(target_folder: Path, tmp_path: Path, rank: int | None = None) -> Any:
    """A random trainable head and its export, loaded for inference in float32; with a transition
    table of a rank.
    """
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
    transition = None
    if rank is not None:
        transition = TransitionTable(60, rank)
        with torch.no_grad():
            for parameter in transition.parameters():
                parameter.copy_(torch.randn(parameter.shape).bfloat16().float())
    export_head(tmp_path / "head", trainable, transition, target_ids, provenance)
    head = PEagleHead.load(tmp_path / "head", target, max_position=128)
    return target, trainable, transition, head, target_ids


def test_the_training_forward_drafts_what_inference_drafts(
    target_folder: Path, tmp_path: Path
) -> None:
    target, trainable, _, head, target_ids = tiny_parts(target_folder, tmp_path)
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


@pytest.mark.parametrize("rank", [None, 3])
def test_teacher_forced_acceptance_equals_a_walk_with_real_drafts(
    target_folder: Path, tmp_path: Path, rank: int | None
) -> None:
    parts = tiny_parts(target_folder, tmp_path, rank)
    target, trainable, transition, head, target_ids = parts
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
    extractor = FeatureExtractor(target, target.default_taps(), rows)
    found = teacher_forced_acceptance(
        Supervisor(trainable, extractor, target.embed_tokens, MASK_TOKEN, CONFIG),
        transition,
        [Sample(tokens, 7)],
        torch.from_numpy(target_ids),
        4,
        autocast=False,
    )
    assert accepted > 4
    assert found.windows == windows
    assert found.acceptance_length == pytest.approx(1 + accepted / windows)
