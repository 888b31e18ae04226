"""Cost of one decode step on the CPU, as ratios in one run.

    python benches/decode.py [--json]

Prints the target's forward by number of rows, the drafter's pass, and the fixed cost of a step
(everything but the weights' own products) beside that of `transformers` in eager mode on the same
weights. All sides alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from peagle.backends import select_backend
from peagle.bench import hardware
from peagle.demo.head import demo_head_dir
from peagle.demo.target import demo_target_dir
from peagle.heads.peagle import PEagleHead
from peagle.models.batch import Batch
from peagle.models.llama import Decoder

CONTEXT = 256
BLOCK = 16
ROWS = (1, 2, 4, 6, 8, 12, 16, 32)
DRAFTS = 5
ACCEPTED = 1


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


def measure(rounds: int) -> dict[str, Any]:
    """Medians in milliseconds and the ratios that are promised."""
    folder = demo_target_dir()
    target = Decoder.load(folder, select_backend("cpu", "bfloat16"), max_position=1024)
    sides: dict[str, Callable[[], Any]] = {f"rows {r}": window(target, r) for r in ROWS}
    sides["again, rows 1"] = sides["rows 1"]
    sides["drafter"] = drafter(target)
    sides["linears, rows 1"] = own_linears(target)
    sides |= transformers_sides(folder)
    times = alternate(sides, rounds)
    one = times["rows 1"]
    fixed = one - times["linears, rows 1"]
    peer = times["transformers, rows 1"] - times["transformers linears, rows 1"]
    return {
        "meta": hardware() | {"context": CONTEXT, "dtype": "bfloat16", "rounds": rounds},
        "ms": {name: round(value, 3) for name, value in times.items()},
        "rows over one row": {str(r): round(times[f"rows {r}"] / one, 3) for r in ROWS},
        "A/A (the same thing twice)": round(times["again, rows 1"] / one, 3),
        "drafter over one row": round(times["drafter"] / one, 3),
        "fixed cost, ms": {"peagle": round(fixed, 3), "transformers": round(peer, 3)},
        "fixed cost over transformers": round(fixed / peer, 3),
    }


def alternate(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each side, every round running all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 2):
        for name, run in sides.items():
            # Once untimed: another library's threads may still spin, and the caches are its own.
            run()
            started = time.perf_counter()
            run()
            if index >= 2:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(values) for name, values in times.items()}


def chain(rows: int, start: int, position: int) -> Batch:
    """One request that owns blocks 0, 1, ..."""
    inner = np.arange(rows, dtype=np.int32)
    return Batch(
        input_ids=inner + 100,
        positions=inner + np.int32(position),
        slots=inner + np.int32(start),
        query_start=np.array([0, rows], np.int32),
        context_lens=np.array([start], np.int32),
        parents=inner - 1,
        block_tables=np.arange(CONTEXT // BLOCK + 4, dtype=np.int32)[None],
    )


def window(target: Decoder, rows: int) -> Callable[[], Any]:
    """Forward and logits of a window of `rows` behind the context."""
    cache = target.new_cache(CONTEXT // BLOCK + 4, BLOCK)
    target.forward(chain(CONTEXT, 0, 0), cache, BLOCK)
    batch, wanted = chain(rows, CONTEXT, CONTEXT), np.arange(rows, dtype=np.int32)

    def run() -> Any:
        hidden, _ = target.forward(batch, cache, BLOCK)
        return target.logits(hidden, wanted)

    return run


def drafter(target: Decoder) -> Callable[[], Any]:
    """One drafter pass: the committed rows of a window that accepted one draft, and mask rows."""
    head = PEagleHead.load(demo_head_dir(), target, max_position=1024)
    cache = head.new_cache(CONTEXT // BLOCK + 4, BLOCK)
    context = head.backend.zeros(CONTEXT - 1, head.config.hidden_size)
    wanted = np.arange(1, dtype=np.int32)
    head.forward(chain(CONTEXT - 1, 1, 0), context, cache, BLOCK, wanted)
    rows = ACCEPTED + 1 + DRAFTS - 1
    aux = head.backend.zeros(rows, len(head.taps) * head.config.target_hidden_size)
    batch = chain(rows, CONTEXT, CONTEXT - 1)
    wanted = np.arange(rows - DRAFTS, rows, dtype=np.int32)

    def run() -> Any:
        hidden = head.project(aux)
        return head.backend.argmax(head.forward(batch, hidden, cache, BLOCK, wanted))

    return run


def own_linears(target: Decoder) -> Callable[[], Any]:
    """Only the products with the target's weights, one row."""
    backend = target.backend
    weights = [w for layer in target.layers for w in (layer.qkv, layer.output, layer.gate_up)]
    weights += [layer.down for layer in target.layers] + [target.lm_head]
    inputs = [backend.zeros(1, w.in_features) for w in weights]

    def run() -> None:
        for x, weight in zip(inputs, weights, strict=True):
            backend.linear(x, weight)

    return run


def transformers_sides(folder: Path) -> dict[str, Callable[[], Any]]:
    """A decode step of `transformers` and its linears alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = torch.arange(100, 100 + CONTEXT)[None]
    with torch.inference_mode():
        cache = model(ids, use_cache=True).past_key_values
    weights = [m.weight.detach() for m in model.modules() if isinstance(m, torch.nn.Linear)]
    inputs = [torch.zeros(1, w.shape[1], dtype=torch.bfloat16) for w in weights]

    @torch.inference_mode()
    def step() -> Any:
        output = model(ids[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return output

    @torch.inference_mode()
    def linears() -> None:
        for x, weight in zip(inputs, weights, strict=True):
            F.linear(x, weight)

    return {"transformers, rows 1": step, "transformers linears, rows 1": linears}


if __name__ == "__main__":
    main()
