"""Fitting the transition table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle.backends import select_backend
from peagle.errors import ConfigError
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.train import transition as transition_module
from peagle.train.corpus import Sample
from peagle.train.features import FeatureExtractor
from peagle.train.module import HeadShape, TrainableHead
from peagle.train.supervision import Supervisor
from peagle.train.transition import TransitionTable, fit_transition
from tests.tiny import HIDDEN, MASK_TOKEN, VOCAB, random_ids
from tests.train.tiny_run import CONFIG, Silent, run


def supervisor(target_folder: Path) -> Supervisor:
    """Of a random head."""
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    sizes = target.config
    torch.manual_seed(0)
    shape = HeadShape(HIDDEN, 112, 1, sizes.attention, sizes.rope, sizes.rms_norm_eps, 3, VOCAB)
    head = TrainableHead(shape)
    extractor = FeatureExtractor(target, target.default_taps(), target.lm_head.weight, 1 << 24)
    config = replace(CONFIG, transition_rank=16, transition_iterations=60, batch=4)
    return Supervisor(head, extractor, target.embed_tokens, MASK_TOKEN, config)


def test_a_fitted_table_says_more_than_none_and_leaves_the_head_alone(target_folder: Path) -> None:
    given = supervisor(target_folder)
    samples = [Sample(np.asarray(random_ids(30, seed=s), np.int32), 2) for s in range(4)]
    before = {name: t.clone() for name, t in given.head.state_dict().items()}
    table = fit_transition(given, samples, np.arange(VOCAB), given.config)
    assert table is not None
    for name, tensor in given.head.state_dict().items():
        assert torch.equal(tensor, before[name]), name

    def loss(table: TransitionTable) -> float:
        generator = torch.Generator().manual_seed(9)
        draft_ids = torch.arange(VOCAB)
        found = transition_module._loss(table, given, samples, draft_ids, 0, generator)
        return float(found.detach())

    torch.manual_seed(0)
    assert loss(table) < 0.95 * loss(TransitionTable(VOCAB, 16))


def test_a_run_with_rank_0_writes_no_table(target_folder: Path, tmp_path: Path) -> None:
    result = run(target_folder, tmp_path, replace(CONFIG, transition_rank=0))
    assert not (result.head / "transition.safetensors").exists()
    target = Decoder.load(target_folder, select_backend("torch-cpu", "float32"))
    assert PEagleHead.load(result.head, target, max_position=64).transition is None


def test_a_finished_run_fits_the_same_table_again(target_folder: Path, tmp_path: Path) -> None:
    first = run(target_folder, tmp_path)
    table = (first.head / "transition.safetensors").read_bytes()
    listener = Silent()
    run(target_folder, tmp_path, listener=listener)
    assert (first.head / "transition.safetensors").read_bytes() == table
    assert listener.fitted == CONFIG.transition_iterations


@pytest.mark.parametrize(
    "change",
    [{"transition_rank": -1}, {"transition_iterations": 0}, {"transition_lr": 0.0}],
    ids=str,
)
def test_unusable_options_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(CONFIG, **change)  # type: ignore[arg-type]
