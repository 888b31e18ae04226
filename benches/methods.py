"""Acceptance and speed of every way to draft and verify above temperature 0, in one run.

    python benches/methods.py [--target demo] [--head demo] [--temperatures 0.7,1] [--k 5] [--json]

All sides alternate; a round gives each of them the same prompts and the same seed, and the next
round another seed. Speed is the median over rounds, acceptance length (which counts the extra
token) the mean; the last column is the median speed over that of the same engine without drafts,
measured right beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from statistics import mean, median

from peagle import LLM
from peagle.bench import Result, hardware, run_bench
from peagle.datasets import bench_prompts

METHODS = (
    ("coupled", "greedy", "chain"),
    ("coupled", "greedy", "tree"),
    ("coupled", "coupled", "chain"),
    ("coupled", "coupled", "tree"),
    ("coupled", "sampled", "chain"),
    ("rejection", "sampled", "chain"),
    ("rejection", "sampled", "tree"),
    ("block", "sampled", "chain"),
)


@dataclass
class Side:
    """One method at one temperature."""

    temperature: float
    verification: str
    drafts: str
    shape: str
    results: list[Result] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """What is printed."""
        lengths = [r.acceptance_length for r in self.results if r.acceptance_length is not None]
        return {
            "temperature": self.temperature,
            "verification": self.verification,
            "drafts": self.drafts,
            "shape": self.shape,
            "acceptance_length": mean(lengths),
            "tokens_per_s": median(r.tokens_per_s for r in self.results),
            "speedup": median(r.speedup for r in self.results if r.speedup is not None),
        }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--target", default="demo")
    parser.add_argument("--head", default="demo")
    parser.add_argument("--prompts", help="as `peagle bench` takes them")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0.7,1", help="for example 0.7,1")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps({"meta": hardware() | vars(arguments), "results": rows}))
        return
    print(hardware(), vars(arguments))
    for row in rows:
        print(
            f"T={row['temperature']:<4} {row['verification']:9} {row['drafts']:8} "
            f"{row['shape']:6} acceptance {row['acceptance_length']:.2f} "
            f"{row['tokens_per_s']:6.1f} tokens/s {row['speedup']:.2f}x"
        )


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each temperature and method."""
    engines = {
        method: LLM(
            arguments.target,
            head=arguments.head,
            num_speculative_tokens=arguments.k,
            max_num_seqs=1,
            verification=method[0],
            drafts=method[1],
            draft_shape=method[2],
        )
        for method in METHODS
    }
    first = engines[METHODS[0]]
    _, records = bench_prompts(arguments.prompts)
    prompts = [first.encode_chat(r.messages) for r in records[: arguments.num_prompts]]
    temperatures = [float(t) for t in arguments.temperatures.split(",")]
    sides = [Side(t, *method) for t in temperatures for method in METHODS]
    for seed in range(arguments.rounds):
        for side in sides if seed % 2 == 0 else sides[::-1]:
            llm = engines[side.verification, side.drafts, side.shape]
            params = {"max_tokens": arguments.max_tokens, "ignore_eos": True, "seed": seed}
            params["temperature"] = side.temperature
            _, result = run_bench(llm, prompts, [0, arguments.k], params, rounds=1)
            side.results.append(result)
            print(f"round {seed + 1}:", side.row(), file=sys.stderr)
    return [side.row() for side in sides]


if __name__ == "__main__":
    main()
