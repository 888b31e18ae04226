"""`peagle check`."""

from __future__ import annotations

from typing import Annotated

import typer

from peagle.cli.shared import (
    CHECK_FAILED,
    Device,
    Dtype,
    Head,
    Json,
    Output,
    emit,
    progress_bar,
    user_errors,
)
from peagle.cli.tables import print_check


@user_errors
def check(
    target: Annotated[
        str | None,
        typer.Option(help="Also check this model: a Hugging Face folder, or 'demo'."),
    ] = None,
    head: Head = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, fewer trials.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the weights.")] = Dtype.auto,
    device: Device = "cpu",
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Test the sampler: known laws, drafter-invariance, noise, and controls that must fail.

    Exit code 1 if a case fails.

    Example: peagle check --quick --target demo
    """
    from peagle.check.model import check_model
    from peagle.check.report import CheckReport
    from peagle.check.sampler import check_sampler

    cases = []
    if target is not None:  # first, for a model may be refused
        with progress_bar("generating") as advance:
            cases = check_model(
                target, head, device=device, dtype=dtype.value, quick=quick, progress=advance
            )
    with progress_bar("sampling") as advance:
        sampler = check_sampler(quick=quick, progress=advance)
    report = CheckReport(sampler.cases + cases)
    emit(report.as_json(), as_json, output)
    if not as_json:
        print_check(report)
    if not report.passed:
        raise typer.Exit(CHECK_FAILED)
