"""vLLM's rejection sampler on a CPU, driven through its own class.

In 0.32.0 the CPU kernel that repeats a request's temperature, top_k and top_p for each of its rows
drops what it computed, so that they are uninitialised memory: `expand_batch_to_tokens` is replaced
with `repeat_interleave` here. Without that, sampled speculation is wrong, and not comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler as module
from vllm.v1.sample.logits_processor.state import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


def _expand(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)).long()
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return torch.where(expanded == replace_from, replace_to, expanded)


# What a vLLM worker does before its first step.
current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
module.expand_batch_to_tokens = _expand


def vllm_side(
    logits: torch.Tensor, drafts: list[int], history: list[int], parameters: dict[str, Any]
) -> Callable[[], list[int]]:
    """One call of the sampler for one request with a chain of drafts; the emitted tokens.

    Args:
        logits: [len(drafts) + 1, V]; not written.
        history: the prompt's tokens.
        parameters: temperature, top_k, top_p and penalties, as peagle names them.
    """
    sampler = module.RejectionSampler(Sampler())
    metadata = SpecDecodeMetadata.make_dummy([drafts], torch.device("cpu"))
    metadata.target_logits_indices = torch.arange(len(drafts), dtype=torch.int32)
    metadata.bonus_logits_indices = torch.tensor([len(drafts)], dtype=torch.int32)

    def one(name: str, off: float) -> torch.Tensor:
        return torch.tensor([parameters.get(name, off)], dtype=torch.float32)

    penalties = {
        "frequency_penalties": one("frequency_penalty", 0.0),
        "presence_penalties": one("presence_penalty", 0.0),
        "repetition_penalties": one("repetition_penalty", 1.0),
    }
    greedy = not parameters.get("temperature")
    sampling = SamplingMetadata(
        temperature=None if greedy else one("temperature", 0.0),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=one("top_p", 1.0) if "top_p" in parameters else None,
        top_k=torch.tensor([parameters["top_k"]]) if "top_k" in parameters else None,
        generators={},
        max_num_logprobs=parameters.get("logprobs"),
        no_penalties=not any("penalty" in name for name in parameters),
        prompt_token_ids=torch.tensor([history]),
        output_token_ids=[[]],
        spec_token_ids=[drafts],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
        **penalties,
    )

    @torch.inference_mode()
    def run() -> list[int]:
        output = sampler(metadata, None, logits, sampling).sampled_token_ids
        return sampler.parse_output(output, logits.shape[1])[0][0]

    return run
