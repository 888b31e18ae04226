"""The transition table: loaded strictly, applied to every draft, and no danger to the text."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from peagle import LLM, SamplingParams
from peagle.backends import select_backend
from peagle.errors import CheckpointError, ConfigError
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.propose.candidates import DrafterPass, by_likelihood
from peagle.propose.tree import Candidates, grow
from tests.tiny import edit_config, make_head, random_ids

DRAFT_VOCAB = 41
RANK = 3


@pytest.fixture
def head_folder(tmp_path: Path) -> Path:
    """A head whose transition table matters much."""
    folder = make_head(tmp_path / "head", draft_vocab=DRAFT_VOCAB)
    torch.manual_seed(3)
    tensors = {name: 2.0 * torch.randn(DRAFT_VOCAB, RANK) for name in ("before", "after")}
    save_file(tensors, folder / "transition.safetensors")
    edit_config(folder, peagle={"transition_rank": RANK})
    return folder


def load(head: Path, target: Path, *, transition: bool = True) -> PEagleHead:
    """In float32."""
    decoder = Decoder.load(target, select_backend("cpu", "float32"), max_position=128)
    return PEagleHead.load(head, decoder, max_position=128, transition=transition)


def edit_table(folder: Path, **tensors: torch.Tensor) -> None:
    """Writes another table."""
    save_file(tensors, folder / "transition.safetensors")


def test_a_correction_is_the_product_of_two_rows(head_folder: Path, target_folder: Path) -> None:
    table = load(head_folder, target_folder).transition
    assert table is not None
    logits = np.random.default_rng(0).normal(size=(1, DRAFT_VOCAB)).astype(np.float32)
    torch.manual_seed(3)
    before, after = (2.0 * torch.randn(DRAFT_VOCAB, RANK) for _ in range(2))
    for draft_id in (0, 7, DRAFT_VOCAB - 1):
        expected = logits + (after @ before[draft_id]).numpy()
        np.testing.assert_allclose(table.correct(logits, draft_id), expected, atol=1e-5)


def test_a_table_that_the_config_promises_must_be_there(
    head_folder: Path, target_folder: Path
) -> None:
    (head_folder / "transition.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"transition\.safetensors does not exist"):
        load(head_folder, target_folder)
    assert load(head_folder, target_folder, transition=False).transition is None


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"before": (40, RANK), "after": (DRAFT_VOCAB, RANK)}, r"\[40, 3\], expected \[41, 3\]"),
        ({"before": (DRAFT_VOCAB, 2), "after": (DRAFT_VOCAB, RANK)}, r"\[41, 2\]"),
        ({"before": (DRAFT_VOCAB, RANK)}, "'after' is missing"),
        (
            dict.fromkeys(("before", "after", "bias"), (DRAFT_VOCAB, RANK)),
            "fit no parameter: bias",
        ),
    ],
)
def test_a_misshapen_table_is_refused(
    head_folder: Path, target_folder: Path, tensors: dict[str, tuple[int, int]], message: str
) -> None:
    edit_table(head_folder, **{name: torch.zeros(shape) for name, shape in tensors.items()})
    with pytest.raises(CheckpointError, match=message):
        load(head_folder, target_folder)


@pytest.mark.parametrize("rank", [0, -1, "3", 2.5])
def test_an_unusable_rank_is_named(head_folder: Path, target_folder: Path, rank: object) -> None:
    edit_config(head_folder, peagle={"transition_rank": rank})
    with pytest.raises(ConfigError, match="transition_rank"):
        load(head_folder, target_folder)


def test_an_unknown_setting_of_the_table_is_refused(target_folder: Path) -> None:
    with pytest.raises(ConfigError, match="transition is 'no', expected True or False"):
        LLM(target_folder, head=None, transition="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_table_changes_drafts_and_no_text(
    head_folder: Path, target_folder: Path, shape: str, temperature: float
) -> None:
    prompt = {"prompt_token_ids": random_ids(9)}
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=5)
    settings = {"dtype": "float32", "max_model_len": 128, "num_speculative_tokens": 4}
    plain = LLM(target_folder, head=None, dtype="float32", max_model_len=128)
    texts = [plain.generate(prompt, params)[0].token_ids]
    drafts = []
    for transition in (True, False):
        llm = LLM(
            target_folder, head=head_folder, draft_shape=shape, transition=transition, **settings
        )
        texts.append(llm.generate(prompt, params)[0].token_ids)
        drafts.append([llm.propose(random_ids(n), 4) for n in range(2, 20)])
    assert texts[0] == texts[1] == texts[2]
    assert drafts[0] != drafts[1]
    assert [d[0] for d in drafts[0]] == [d[0] for d in drafts[1]]


def test_a_grown_chain_is_the_greedy_chain(head_folder: Path, target_folder: Path) -> None:
    head = load(head_folder, target_folder)
    rng = np.random.default_rng(1)
    for _ in range(20):
        logits = rng.normal(size=(6, DRAFT_VOCAB)).astype(np.float32)
        drafted = DrafterPass.of(head, logits, by_likelihood(head, 1))
        nodes = grow(lambda depth, i, drafted=drafted: drafted.behind(0, depth, i), 6, 6)
        assert [i for i, _ in nodes] == head.greedy_chain(logits).tolist()
        assert [parent for _, parent in nodes] == list(range(-1, 5))


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4), st.integers(0, 12))
def test_best_first_growth_finds_the_likeliest_paths(
    seed: int, width: int, depths: int, budget: int
) -> None:
    # A law for each (depth, token before), as a transition table gives.
    rng = np.random.default_rng(seed)
    laws = {
        (depth, before): np.sort(rng.dirichlet(np.ones(width)))[::-1]
        for depth in range(depths)
        for before in range(-1, width)
    }

    def expand(depth: int, before: int) -> Candidates:
        return Candidates(np.log(laws[depth, before]).tolist(), range(width))

    def probability(path: tuple[int, ...]) -> float:
        befores = (-1, *path)
        return math.prod(laws[d, befores[d]][token] for d, token in enumerate(path))

    every = [
        path
        for length in range(1, depths + 1)
        for path in itertools.product(range(width), repeat=length)
    ]
    nodes = grow(expand, depths, budget)
    paths: list[tuple[int, ...]] = []
    for token, parent in nodes:
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths) == min(budget, len(every))
    best = sorted(map(probability, every), reverse=True)[:budget]
    np.testing.assert_allclose([probability(path) for path in paths], best, rtol=1e-9)
