"""`peagle generate`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from peagle.cli.shared import (
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
    parse_bias,
    user_errors,
)


@user_errors
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; '-' reads standard input.")],
    target: Target = "demo",
    head: Head = "auto",
    k: Annotated[int | None, typer.Option("-k", help="Drafts a step; 0 is off.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass kept, in (0, 1].")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Tokens kept; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least share of the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="64-bit seed; drawn when absent.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    min_tokens: Annotated[int, typer.Option(help="Fewest tokens before the text may end.")] = 0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Against tokens of prompt and output; above 0, 1 is off.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="For each time the output holds a token; -2 to 2.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="For tokens that the output holds; -2 to 2.")
    ] = 0.0,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Word not to write; may be repeated.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="TOKEN_ID=BIAS, -100 to 100; may be repeated."),
    ] = None,
    allowed_token_id: Annotated[
        list[int] | None, typer.Option(help="Only these tokens; may be repeated.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="In the JSON: log probabilities of so many likeliest tokens.")
    ] = None,
    logprobs_mode: Annotated[
        str, typer.Option(help="raw_logprobs or processed_logprobs.")
    ] = "raw_logprobs",
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="Stop token; may be repeated.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option(help="Go on after the end-of-sequence token.")
    ] = False,
    raw: Annotated[
        bool, typer.Option(help="Continue the text, without the chat template.")
    ] = False,
    verification: Verification = "coupled",
    drafts: Drafts = None,
    draft_shape: DraftShape = None,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the weights.")] = Dtype.auto,
    device: Device = "cpu",
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Answer a prompt; the text streams to the terminal.

    Example: peagle generate "Write a haiku about the sea." --max-tokens 64
    """
    from peagle.llm import LLM
    from peagle.params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        bad_words=tuple(bad_word or ()),
        logit_bias=dict(map(parse_bias, logit_bias or ())),
        allowed_token_ids=allowed_token_id or None,
        logprobs=logprobs,
        logprobs_mode=logprobs_mode,  # type: ignore[arg-type]
    )
    llm = LLM(
        target,
        head=head,
        dtype=dtype.value,
        device=device,
        num_speculative_tokens=k,
        verification=verification,
        drafts=drafts,
        draft_shape=draft_shape,
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    ids = llm.encode(text) if raw else llm.encode_chat([{"role": "user", "content": text}])
    result = None
    for new, result in llm.stream(ids, params):  # noqa: B007
        if not as_json:
            sys.stdout.write(new)
            sys.stdout.flush()
    if not as_json:
        sys.stdout.write("\n")
    if result is not None:
        if seed is None and temperature > 0 and not as_json:
            sys.stderr.write(f"seed {result.outputs[0].seed}\n")
        completion = asdict(result.outputs[0])
        usage = {"prompt": len(ids), "completion": len(result.token_ids)}
        emit(completion | {"usage": usage}, as_json, output)
