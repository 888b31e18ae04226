"""What a head starts from: the target's own last layers, or a head trained before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from peagle.errors import HeadMismatchError
from peagle.heads.peagle import PEagleHead
from peagle.models.llama import Decoder
from peagle.models.weights import WeightReader
from peagle.train.config import TrainConfig
from peagle.train.module import HeadShape, TrainableHead


def choose_draft_vocab(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """The `size` most frequent ids, ascending; ties go to the lower id."""
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def draft_vocab_of(
    folder: Path, target: Decoder, mask_token_id: int, config: TrainConfig
) -> npt.NDArray[np.int64]:
    """The draft vocabulary of a head to go on with, after checking that it suits the run.

    Args:
        folder: a head that `peagle train` wrote.

    Returns:
        [draft_vocab_size] target ids.

    Raises:
        HeadMismatchError: other sizes, taps or mask token than the target and `config` have.
        PeagleError: whatever loading it finds.
    """
    loaded = PEagleHead.load(folder, target, max_position=1, transition=False)
    wanted = {
        "num_layers": (loaded.config.num_layers, config.num_layers),
        "draft_vocab_size": (loaded.config.draft_vocab_size, config.draft_vocab_size),
        "mask_token_id": (loaded.config.mask_token_id, mask_token_id),
        "taps": (loaded.taps, target.default_taps()),
    }
    for name, (found, asked) in wanted.items():
        if found != asked:
            raise HeadMismatchError(
                f"{folder}: {name} is {found}, this run asks for {asked}",
                hint="start from another head, or train with the sizes of this one",
            )
    return loaded.target_ids.astype(np.int64)


def untrained_head(target: Decoder, config: TrainConfig) -> TrainableHead:
    """A head of the target's width, with random weights that follow from the seed."""
    sizes = target.config
    torch.manual_seed(config.seed)
    return TrainableHead(
        HeadShape(
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_layers=config.num_layers,
            attention=sizes.attention,
            rope=sizes.rope,
            rms_norm_eps=sizes.rms_norm_eps,
            num_taps=len(target.default_taps()),
            draft_vocab_size=config.draft_vocab_size,
        )
    )


@torch.no_grad()
def start_from_head(head: TrainableHead, folder: Path) -> None:
    """Takes over every weight of a head in the vLLM layout; its transition table is fitted anew."""
    reader = WeightReader(folder)
    for name, parameter in head.named_parameters():
        parameter.copy_(reader.take(name, parameter.shape, torch.float32))
    reader.skip("d2t")
    reader.finish()
