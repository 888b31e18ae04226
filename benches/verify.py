"""Cost of verifying one window of eight rows, as ratios in one run.

    python benches/verify.py [--json] [--rounds N] [--threads 1,2]

The window is a chain of seven drafts that are all accepted, so that every row counts. Beside
peagle's `verify` run the same work in plain torch, vLLM's CPU rejection sampler if `vllm` can be
imported (its class, repaired as `peers/vllm_sampler.py` says), and one streaming maximum over the
rows, which is what reading them costs. All sides alternate; figures are medians.

`ratio_torch` and `ratio_vllm` say how many times longer the others take, `ratio_read` how many
times longer than the streaming maximum peagle takes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from peagle._core import Drafts
from peagle.backends.threads import set_num_threads
from peagle.bench import hardware
from peagle.engine import Scheduler
from peagle.propose.drafts import TokenTrees
from peagle.verify import Verdicts, verify

K = 7
ROWS = K + 1
HISTORY = list(range(100, 356))
VOCABS = (49_152, 151_936)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "t1": {"temperature": 1.0},
    "t1_norm": {"temperature": 1.0, "logprobs": 0},
    "top_k": {"temperature": 1.0, "top_k": 50},
    "top_p": {"temperature": 1.0, "top_p": 0.95},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
    },
}
Side = Callable[[], Any]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, for example 1,2")
    parser.add_argument("--vocab", default=",".join(map(str, VOCABS)), help="vocabulary sizes")
    arguments = parser.parse_args()
    cases = [
        case
        for threads in map(int, arguments.threads.split(","))
        for vocab in map(int, arguments.vocab.split(","))
        for dtype in DTYPES
        for case in measure(threads, vocab, dtype, arguments.rounds)
    ]
    result = {"meta": hardware() | {"rounds": arguments.rounds}, "cases": cases}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(result["meta"])
    for case in cases:
        print("  ".join(f"{name} {value}" for name, value in case.items()))


def measure(threads: int, vocab: int, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """All modes at one number of threads, vocabulary size and dtype."""
    set_num_threads(threads)
    torch.set_num_threads(threads)
    logits = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    cases = []
    for mode, parameters in MODES.items():
        ours, drafts = peagle_side(logits, parameters)
        sides = {
            "peagle": ours,
            "torch": torch_side(logits, drafts, parameters),
            "read": read_side(logits),
        }
        if importlib.util.find_spec("vllm"):
            from peers.vllm_sampler import vllm_side

            sides["vllm"] = vllm_side(logits, drafts, HISTORY, parameters)
        print(f"{mode} {vocab} {dtype} {threads} threads", file=sys.stderr)
        if mode == "greedy":
            check_same(sides, drafts)
        times = alternate(sides, rounds)
        ms = times["peagle"]
        cases.append(
            {
                "rows": ROWS,
                "vocab": vocab,
                "mode": mode,
                "dtype": str(dtype).removeprefix("torch."),
                "threads": threads,
                "ms": round(ms, 4),
                "ratio_torch": round(times["torch"] / ms, 2),
                "ratio_vllm": round(times["vllm"] / ms, 2) if "vllm" in times else None,
                "ratio_read": round(ms / times["read"], 2),
            }
        )
    return cases


def check_same(sides: dict[str, Side], drafts: list[int]) -> None:
    """Stops if the sides do not do the same work: all must accept the argmaxes."""
    for name in sides.keys() & {"torch", "vllm"}:
        emitted = sides[name]()
        if emitted[:K] != drafts or len(emitted) != ROWS:
            raise SystemExit(f"{name} emits {emitted} for the greedy drafts {drafts}")


def alternate(sides: dict[str, Side], rounds: int) -> dict[str, float]:
    """Median milliseconds of each side, every round running all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 2):
        for name, run in sides.items():
            run()  # once untimed: another library's threads may still spin
            started = time.perf_counter()
            run()
            if index >= 2:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(values) for name, values in times.items()}


def peagle_side(logits: torch.Tensor, parameters: dict[str, Any]) -> tuple[Side, list[int]]:
    """`verify` of a window, and the drafts that it accepts in full."""
    drafts = [0] * K
    while True:
        plan = window(logits, parameters, drafts)
        verdicts: Verdicts = verify(plan, logits)
        if int(verdicts.accepted[0]) == K:
            return partial(verify, plan, logits), drafts
        right = verdicts.token_ids.tolist()[:K]
        drafts = right + [0] * (K - len(right))


def window(logits: torch.Tensor, parameters: dict[str, Any], drafts: list[int]) -> Any:
    """The plan of a request's second step, with a chain of drafts."""
    scheduler = Scheduler(
        num_blocks=64,
        block_size=16,
        max_num_seqs=1,
        max_num_batched_tokens=512,
        max_model_len=512,
        num_speculative_tokens=K,
    )
    scheduler.add(0, np.array(HISTORY, np.int32), max_tokens=100, seed=1, **parameters)
    asked = scheduler.update(verify(scheduler.schedule(), logits[:1])).draft
    nodes = [(token, depth - 1) for depth, token in enumerate(drafts)]
    trees = TokenTrees.of(asked.request_ids, [nodes])
    return scheduler.schedule(
        Drafts(trees.request_ids, trees.starts, trees.token_ids, trees.parents)
    )


def torch_side(logits: torch.Tensor, drafts: list[int], parameters: dict[str, Any]) -> Side:
    """The same work in plain torch: process every row, race it, compare with the drafts."""
    wanted = torch.tensor(drafts)

    def draw() -> torch.Tensor:
        if not parameters["temperature"]:
            return logits.argmax(dim=1)
        values = logits.float()
        if "repetition_penalty" in parameters:
            values = penalised(values, drafts, parameters)
        values = values / parameters["temperature"]
        if "top_k" in parameters:
            least = values.topk(parameters["top_k"], dim=1).values[:, -1:]
            values = values.masked_fill(values < least, -torch.inf)
        if "top_p" in parameters:
            values, order = values.sort(dim=1, descending=True)
            probs = values.softmax(dim=1)
            values = values.masked_fill(probs.cumsum(1) - probs >= parameters["top_p"], -torch.inf)
            raced = values.softmax(dim=1) / torch.empty_like(values).exponential_()
            return order.gather(1, raced.argmax(dim=1, keepdim=True))[:, 0]
        drawn = (values.softmax(dim=1) / torch.empty_like(values).exponential_()).argmax(dim=1)
        if "logprobs" in parameters:
            logits.float().log_softmax(dim=1).gather(1, drawn[:, None]).tolist()
        return drawn

    @torch.inference_mode()
    def run() -> list[int]:
        drawn = draw()
        accepted = int((drawn[:-1] == wanted).long().cumprod(0).sum())
        return drawn[: accepted + 1].tolist()

    return run


def penalised(values: torch.Tensor, drafts: list[int], parameters: dict[str, Any]) -> torch.Tensor:
    """Penalties of each row with the tokens on its own path."""
    outputs = torch.zeros_like(values)
    for row in range(1, ROWS):
        outputs[row] = outputs[row - 1]
        outputs[row, drafts[row - 1]] += 1
    seen = outputs > 0
    seen[:, HISTORY] = True
    factor = parameters["repetition_penalty"]
    repeated = torch.where(values > 0, values / factor, values * factor)
    values = torch.where(seen, repeated, values)
    values -= parameters["frequency_penalty"] * outputs
    return values - parameters["presence_penalty"] * (outputs > 0)


def read_side(logits: torch.Tensor) -> Side:
    """One streaming maximum over the stored numbers, by numpy, which runs at SIMD width."""
    rows = logits if logits.dtype == torch.float32 else logits.view(torch.int16)
    array = rows.numpy()
    return lambda: array.max()


if __name__ == "__main__":
    main()
