"""`peagle train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from peagle.cli.shared import Device, Json, Output, Target, emit, progress_bar, user_errors
from peagle.errors import ConfigError
from peagle.train.config import TrainConfig

if TYPE_CHECKING:
    from peagle.train.trainer import Progress as Iteration

DEFAULTS = TrainConfig()


@user_errors
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run; run again to resume.")],
    target: Target = "demo",
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file of prompts; built-in ones by default.")
    ] = None,
    mask_token: Annotated[
        str | None,
        typer.Option(
            help="Unused token of the target for mask rows; the demo's is <empty_output>."
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            help="Head folder to go on with (or demo); by default the target's last layers."
        ),
    ] = None,
    answers: Annotated[int, typer.Option(help="Continuations to generate.")] = DEFAULTS.num_answers,
    answer_len: Annotated[int, typer.Option(help="Tokens of each.")] = DEFAULTS.answer_len,
    iterations: Annotated[int, typer.Option(help="Training iterations.")] = DEFAULTS.iterations,
    batch: Annotated[int, typer.Option(help="Answers an iteration sees.")] = DEFAULTS.batch,
    layers: Annotated[int, typer.Option(help="Decoder layers of the head.")] = DEFAULTS.num_layers,
    draft_vocab: Annotated[
        int, typer.Option(help="Size of the draft vocabulary.")
    ] = DEFAULTS.draft_vocab_size,
    k_train: Annotated[int, typer.Option(help="Depths trained.")] = DEFAULTS.k_train,
    cod_ratio: Annotated[
        float, typer.Option(help="Share of a depth's anchors that the next keeps.")
    ] = DEFAULTS.cod_ratio,
    loss: Annotated[str, typer.Option(help="kl or ce.")] = DEFAULTS.loss,
    matrix_lr: Annotated[float, typer.Option(help="Peak rate of Muon.")] = DEFAULTS.matrix_lr,
    other_lr: Annotated[float, typer.Option(help="Peak rate of AdamW.")] = DEFAULTS.other_lr,
    greedy_share: Annotated[
        float, typer.Option(help="Share of answers decoded greedily.")
    ] = DEFAULTS.greedy_share,
    heldout: Annotated[int, typer.Option(help="Answers kept for the report.")] = DEFAULTS.heldout,
    checkpoint_every: Annotated[
        int, typer.Option(help="Iterations between checkpoints.")
    ] = DEFAULTS.checkpoint_every,
    feature_cache_gib: Annotated[
        float, typer.Option(help="Memory for hidden states of the target.")
    ] = DEFAULTS.feature_cache_gib,
    transition_rank: Annotated[
        int, typer.Option(help="Rank of the transition table; 0 is none.")
    ] = DEFAULTS.transition_rank,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = DEFAULTS.seed,
    device: Device = "cpu",
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Train a P-EAGLE head on what the target itself writes; resumes after any interruption.

    Example: peagle train --target demo --out runs/first --answers 2048 --iterations 1000
    """
    from peagle.demo.head import demo_head_dir
    from peagle.demo.target import demo_target_dir
    from peagle.tokenizer import Tokenizer
    from peagle.train.run import train_head

    config = TrainConfig(
        num_layers=layers,
        draft_vocab_size=draft_vocab,
        k_train=k_train,
        cod_ratio=cod_ratio,
        loss=loss,
        num_answers=answers,
        answer_len=answer_len,
        greedy_share=greedy_share,
        heldout=heldout,
        iterations=iterations,
        batch=batch,
        matrix_lr=matrix_lr,
        other_lr=other_lr,
        checkpoint_every=checkpoint_every,
        feature_cache_gib=feature_cache_gib,
        transition_rank=transition_rank,
        seed=seed,
    )
    folder = demo_target_dir() if target == "demo" else Path(target)
    start = None
    if start_from is not None:
        start = demo_head_dir() if start_from == "demo" else Path(start_from)
    tokenizer = Tokenizer.from_folder(folder)
    mask_token_id = _mask_token_id(tokenizer, mask_token, is_demo=target == "demo")
    encoded = _prompt_ids(tokenizer, prompts, config)
    with progress_bar("generating answers") as advance:
        listener = _Bar(advance)
        result = train_head(
            folder,
            out,
            encoded,
            mask_token_id,
            config,
            listener,
            start=start,
            device=device,
            chat_template=tokenizer.chat_template.source if tokenizer.chat_template else None,
            prompt_source=str(prompts.name) if prompts else "the built-in prompts",
        )
    acceptance = result.acceptance
    report = asdict(result) | {
        "head": str(result.head),
        "acceptance_length": acceptance.acceptance_length,
        "accept_by_position": acceptance.accept_by_position,
    }
    emit(report, as_json, output)
    if not as_json:
        positions = " ".join(f"{share:.2f}" for share in acceptance.accept_by_position)
        Console(highlight=False).print(
            f"head in {result.head}: held-out acceptance length "
            f"{acceptance.acceptance_length or 1.0:.2f} (the extra token counts), "
            f"by position {positions}, {acceptance.windows} windows; "
            f"draft vocabulary covers {result.draft_vocab_coverage:.1%}"
        )


class _Bar:
    """Shows all phases in one progress bar."""

    def __init__(self, advance: Any) -> None:
        self._advance = advance

    def generating(self, done: int, total: int) -> None:
        self._advance(done, total)

    def training(self, progress: Iteration, total: int) -> None:
        self._advance(progress.iteration, total, f"training, loss {progress.loss:.3f}")

    def fitting(self, done: int, total: int) -> None:
        self._advance(done, total, "fitting the transition table")


def _mask_token_id(tokenizer: Any, name: str | None, *, is_demo: bool) -> int:
    from peagle.demo.head import DEMO_MASK_TOKEN

    if name is None and not is_demo:
        raise ConfigError(
            "--mask-token is missing",
            hint="name a token of the target's vocabulary that ordinary text does not use",
        )
    token = name or DEMO_MASK_TOKEN
    token_id: int | None = tokenizer.token_id(token)
    if token_id is None:
        raise ConfigError(f"--mask-token {token!r} is not in the target's vocabulary")
    return token_id


def _prompt_ids(tokenizer: Any, path: Path | None, config: TrainConfig) -> list[Sequence[int]]:
    from peagle.datasets import read_prompts
    from peagle.train.prompts import training_prompts

    if path is None:
        chats = training_prompts(config.num_answers, config.seed)
    else:
        chats = [list(record.messages) for record in read_prompts(path)]
    return [tokenizer.apply_chat_template(chat) for chat in chats]
