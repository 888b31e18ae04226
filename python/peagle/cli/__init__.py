"""The command line: `peagle generate | demo | bench | check | train`."""

from __future__ import annotations

import io
import logging
import sys

import typer

from peagle.cli.check import check
from peagle.cli.generate import generate
from peagle.cli.measure import bench, demo
from peagle.cli.train import train

app = typer.Typer(
    help="Speculative decoding with P-EAGLE heads: faster text, token for token the same.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, demo, bench, check, train):
    app.command()(command)


def main() -> None:
    """Entry point: logging to stderr, then the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
    app()
