"""On the demo target: speculation and batches never change a token; plain equals transformers."""

from __future__ import annotations

import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.datasets import demo_prompts
from peagle.demo.target import demo_target_dir
from peagle.llm import TokensPrompt

QUESTIONS = [
    "Why do leaves change colour in autumn?",
    "Write a short story about a lighthouse keeper.",
    "List five uses of a paper clip.",
    "Explain recursion to a child.",
    "Write a Python function that reverses a list.",
]


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The demo target with the shipped head, in bfloat16."""
    return LLM("demo", num_speculative_tokens=8, max_model_len=1024)


def prompts(llm: LLM) -> list[TokensPrompt]:
    """The three demo prompts and five more."""
    chats = [record.messages for record in demo_prompts()]
    chats += [({"role": "user", "content": question},) for question in QUESTIONS]
    return [TokensPrompt(prompt_token_ids=llm.encode_chat(chat)) for chat in chats]


def generate(llm: LLM, k: int, batch: int, **settings: float) -> list[list[int]]:
    """Token ids of every prompt, `batch` requests at a time."""
    params = SamplingParams(ignore_eos=True, num_speculative_tokens=k, **settings)  # type: ignore[arg-type]
    all_prompts = prompts(llm)
    groups = [all_prompts[i : i + batch] for i in range(0, len(all_prompts), batch)]
    return [o.token_ids for group in groups for o in llm.generate(group, params)]


def test_the_first_greedy_tokens_equal_transformers_in_float32() -> None:
    import transformers

    folder = demo_target_dir()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    llm = LLM("demo", dtype="float32", max_model_len=512)
    for prompt in prompts(llm)[:3]:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False
            )
        expected = whole[0, ids.shape[1] :].tolist()
        found = llm.generate(prompt, SamplingParams(max_tokens=32))[0].token_ids
        assert found == expected


@pytest.mark.slow
def test_two_thousand_greedy_tokens_are_the_same_with_speculation(llm: LLM) -> None:
    plain = generate(llm, 0, 1, max_tokens=256)
    assert sum(map(len, plain)) > 2000
    before = llm.engine.scheduler.stats()["accepted"]
    assert generate(llm, 5, 1, max_tokens=256) == plain
    assert generate(llm, 8, 8, max_tokens=256) == plain
    assert llm.engine.scheduler.stats()["accepted"] > before


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_sampled_tokens_are_the_same_with_speculation(llm: LLM, temperature: float) -> None:
    settings = {"max_tokens": 40, "temperature": temperature, "seed": 3, "top_p": 0.95}
    plain = generate(llm, 0, 8, **settings)
    assert len({tuple(ids) for ids in plain}) == len(plain)
    for k, batch in ((3, 1), (6, 8)):
        assert generate(llm, k, batch, **settings) == plain


@pytest.mark.parametrize("k", range(1, 9))
def test_every_k_gives_the_same_tokens(llm: LLM, k: int) -> None:
    prompt = prompts(llm)[0]
    settings = {"max_tokens": 48, "ignore_eos": True}
    plain = llm.generate(prompt, SamplingParams(**settings, num_speculative_tokens=0))[0]
    found = llm.generate(prompt, SamplingParams(**settings, num_speculative_tokens=k))[0]
    assert found.token_ids == plain.token_ids
