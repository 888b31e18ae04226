"""What all commands share: options, errors, JSON, progress bars."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peagle.errors import ConfigError, FileWriteError, PeagleError
from peagle.files import write_atomically

P = ParamSpec("P")
R = TypeVar("R")

CHECK_FAILED = 1
USER_ERROR = 2
BROKEN_PIPE = 141
"""What a shell reports of a program that a closed pipe ended."""

Target = Annotated[str, typer.Option(help="Hugging Face model folder, or 'demo'.")]
Head = Annotated[str, typer.Option(help="Head folder, 'demo', 'none', or 'auto'.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Verification = Annotated[
    str, typer.Option(help="coupled, rejection or block; at temperatures above 0.")
]
Drafts = Annotated[
    str | None,
    typer.Option(help="greedy, coupled or sampled; by default what suits the verification."),
]
DraftShape = Annotated[
    str | None,
    typer.Option(help="tree or chain; by default a tree where the verification takes one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Output = Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")]


class Dtype(StrEnum):
    """What the weights are converted to."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"


def user_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a `PeagleError` into one line on stderr and exit code 2.

    An `--output` that cannot be written is found before the command runs.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            output = kwargs.get("output")
            if isinstance(output, Path):
                _check_output(output)
            return command(*args, **kwargs)
        except PeagleError as error:
            hint = f" ({error.hint})" if error.hint else ""
            print(f"error: {error}{hint}", file=sys.stderr)  # noqa: T201
            raise typer.Exit(USER_ERROR) from None
        except BrokenPipeError:
            os._exit(BROKEN_PIPE)  # whoever read standard output has seen enough
        except OSError as error:
            # Standard output: files are written through `peagle.files`, which names them.
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
            os._exit(USER_ERROR)  # an ordinary exit would try to write the rest again

    return wrapped


def _check_output(path: Path) -> None:
    if path.is_dir():
        problem = "it is a folder"
    elif not path.parent.is_dir():
        problem = f"{path.parent} is not a folder"
    elif not os.access(path.parent, os.W_OK):
        problem = f"{path.parent} is not writable"
    else:
        return
    raise FileWriteError(f"{path} cannot be written: {problem}", hint="choose another --output")


def parse_ks(text: str) -> list[int]:
    """`0,3,5` as numbers, without repeats."""
    try:
        ks = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--k is {text!r}, expected numbers such as 0,3,5") from None
    if min(ks) < 0:
        raise ConfigError(f"--k is {text!r}, expected numbers of at least 0")
    return ks


def parse_bias(text: str) -> tuple[int, float]:
    """`17=-2.5` as a token id and its bias."""
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise ConfigError(f"--logit-bias is {text!r}, expected TOKEN_ID=BIAS") from None


def emit(value: dict[str, Any], as_json: bool, output: Path | None) -> None:
    """Writes the JSON object to stdout, a file, or both."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if output is not None:
        write_atomically(output, text.encode())
    if as_json:
        sys.stdout.write(text)


class progress_bar:  # noqa: N801 - reads as a function
    """A progress bar on stderr; `with` gives a function of (done, total, title=None)."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def __enter__(self) -> Callable[..., None]:
        self._progress.start()
        task = self._progress.add_task(self._title, total=None)

        def advance(done: int, total: int, title: str | None = None) -> None:
            self._progress.update(
                task, completed=done, total=total, description=title or self._title
            )

        return advance

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
