"""`peagle demo` and `peagle bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from peagle.cli.shared import (
    CHECK_FAILED,
    Device,
    Drafts,
    DraftShape,
    Dtype,
    Head,
    Json,
    Output,
    Target,
    Verification,
    emit,
    parse_ks,
    progress_bar,
    user_errors,
)
from peagle.cli.tables import print_bench, print_demo
from peagle.errors import ConfigError


@user_errors
def demo(
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 256,
    rounds: Annotated[int, typer.Option(help="Alternating rounds of each mode.")] = 3,
    k: Annotated[int | None, typer.Option("-k", help="Drafts a step.")] = None,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Three answers of SmolLM2-135M-Instruct without and with speculation, compared.

    Exit code 1 if the texts differ.

    Example: peagle demo --max-tokens 64 --rounds 1
    """
    from peagle.demo.run import run_demo

    with progress_bar("generating") as advance:
        report = run_demo(max_tokens=max_tokens, rounds=rounds, k=k, progress=advance)
    emit(report.as_json(), as_json, output)
    if not as_json:
        print_demo(report)
    if not report.identical:
        raise typer.Exit(CHECK_FAILED)


@user_errors
def bench(
    target: Target = "demo",
    head: Head = "auto",
    k: Annotated[str, typer.Option("--k", "-k", help="Numbers of drafts; 0 is off.")] = "0,3,5,7",
    prompts: Annotated[
        str | None, typer.Option(help="JSONL file, mt-bench, humaneval, gsm8k or demo.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts used, from the first on.")] = 8,
    batch: Annotated[int, typer.Option(help="Requests that run together.")] = 1,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of each answer (end of text ignored).")
    ] = 128,
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 3,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every request.")] = 0,
    verification: Verification = "coupled",
    drafts: Drafts = None,
    draft_shape: DraftShape = None,
    transition: Annotated[bool, typer.Option(help="Use the head's transition table.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the weights.")] = Dtype.auto,
    device: Device = "cpu",
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Speed, acceptance and latency for several K, in alternation in one process.

    Example: peagle bench --target demo --head demo --k 0,3,5,7 --prompts mt-bench
    """
    from peagle.bench import hardware, run_bench
    from peagle.datasets import bench_prompts
    from peagle.llm import LLM

    ks = parse_ks(k)
    for name, value in (("batch", batch), ("rounds", rounds), ("num-prompts", num_prompts)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}, expected at least 1")
    source, records = bench_prompts(prompts)
    llm = LLM(
        target,
        head=head,
        dtype=dtype.value,
        device=device,
        num_speculative_tokens=max(ks),
        max_num_seqs=batch,
        verification=verification,
        drafts=drafts,
        draft_shape=draft_shape,
        transition=transition,
    )
    encoded = [llm.encode_chat(r.messages) for r in records[:num_prompts]]
    params = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": True,
    }
    with progress_bar("measuring") as advance:
        results = run_bench(llm, encoded, ks, params, batch=batch, rounds=rounds, progress=advance)
    meta = hardware() | {
        "target": target,
        "head": head,
        "dtype": str(llm.target.backend.dtype).removeprefix("torch."),
        "device": device,
        "prompts": source,
        "num_prompts": len(encoded),
        "prompt_tokens": [len(p) for p in encoded],
        "batch": batch,
        "rounds": rounds,
        "verification": verification,
        "drafts": llm.drafts,
        "draft_shape": llm.draft_shape,
        "transition": transition,
        **params,
    }
    emit({"meta": meta, "results": [asdict(r) for r in results]}, as_json, output)
    if not as_json:
        print_bench(meta, [asdict(r) for r in results])
