"""Reports for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from peagle.check.report import CheckReport
    from peagle.demo.run import DemoReport


def print_demo(report: DemoReport) -> None:
    """The demo's report for people."""
    console = Console(highlight=False)
    for title, text in zip(report.prompts, report.texts, strict=True):
        console.rule(f"[bold]{title}", align="left")
        console.print(text.strip(), markup=False)
    console.rule()
    table = Table("", "tokens/s", "acceptance length*", "accepted by position")
    positions = " ".join(f"{share:.2f}" for share in report.accept_by_position)
    table.add_row("plain decoding", f"{report.tokens_per_s_baseline:.1f}", "", "")
    table.add_row(
        f"P-EAGLE, K={report.k}",
        f"{report.tokens_per_s:.1f}",
        f"{report.acceptance_length:.2f}",
        positions,
    )
    console.print(table)
    console.print(
        f"speed-up {report.speedup:.2f}x, texts {'identical' if report.identical else 'DIFFER'} "
        f"({report.max_tokens} tokens each, {report.meta['dtype']}, "
        f"{report.meta['threads']} threads, {report.meta['cpu']}, {report.meta['simd']})"
    )
    console.print("* tokens a step, the target's own extra token included")


def print_bench(meta: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """The benchmark's table."""
    console = Console(highlight=False)
    table = Table(
        "K",
        "tokens/s",
        "speed-up",
        "acceptance length*",
        "by position",
        "step ms",
        "drafter",
        "verify",
        "TTFT ms",
        "p50/p95/p99 ms a token",
    )
    for r in results:
        gaps = "/".join(f"{v:.1f}" for v in r["inter_token_ms"].values())
        table.add_row(
            str(r["k"]),
            f"{r['tokens_per_s']:.1f}",
            "" if r["speedup"] is None else f"{r['speedup']:.2f}x",
            "" if r["acceptance_length"] is None else f"{r['acceptance_length']:.2f}",
            " ".join(f"{share:.2f}" for share in r["accept_by_position"]),
            f"{r['step_ms']:.1f}",
            f"{r['drafter_share']:.0%}",
            f"{r['verify_share']:.0%}",
            f"{r['ttft_ms']:.0f}",
            gaps,
        )
    console.print(table)
    console.print(
        f"{meta['prompts']}, {meta['num_prompts']} prompts, {meta['max_tokens']} tokens each, "
        f"batch {meta['batch']}, {meta['dtype']}, {meta['threads']} threads, {meta['cpu']}, "
        f"{meta['simd']}"
    )
    console.print("* tokens a step, the target's own extra token included")


def print_check(report: CheckReport) -> None:
    """All cases; a control has passed if its fault was noticed."""
    console = Console(highlight=False)
    table = Table("case", "method", "statistic", "p-value", "")
    for case in report.cases:
        table.add_row(
            case.name,
            f"{case.method}, {case.drafts} {case.shape}",
            f"{case.statistic:.4g}",
            f"{case.p_value:.2g}",
            ("noticed" if case.negative_control else "ok") if case.passed else "[red]FAILED[/red]",
        )
    console.print(table)
    failed = sum(not case.passed for case in report.cases)
    console.print(f"{len(report.cases)} cases, {failed or 'none'} failed")
