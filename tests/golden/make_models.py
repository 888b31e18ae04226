"""Makes the tiny target and the tiny P-EAGLE head of this folder, in a minute on one core.

    cd tests && python -m golden.make_models

A target with untrained weights answers with noise that no head can guess, so both are trained
for a moment on a toy language: words of two to six tokens, each word followed by one of three
others. Inside a word the next tokens are certain, at its end they are not: drafts are accepted
in part. Weights are stored in bfloat16, so float32 and bfloat16 runs see the same numbers.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from .reference import Head, Target, Weights

HERE = Path(__file__).parent
SEED = 20260201
VOCAB, DRAFT_VOCAB, MASK_TOKEN = 512, 192, 511
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 4, 2, 32
K_TRAIN = 6

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 7,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
# The head's theta and epsilon differ from the target's: an engine that mixes them up is caught.
HEAD_CONFIG: dict[str, Any] = {
    **TARGET_CONFIG,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
    "draft_vocab_size": DRAFT_VOCAB,
    "target_hidden_size": HIDDEN,
    "ptd_token_id": MASK_TOKEN,
}


class Language:
    """The toy language: 120 words over the ids 8..299, three successors a word."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw the words and their successors from `rng`."""
        self.words = [rng.integers(8, 300, rng.integers(2, 7)).tolist() for _ in range(120)]
        self.successors = rng.integers(0, 120, (120, 3))

    def text(self, rng: np.random.Generator, length: int) -> list[int]:
        """`length` tokens, starting anywhere in a word."""
        word = int(rng.integers(120))
        tokens: list[int] = self.words[word][rng.integers(len(self.words[word])) :]
        while len(tokens) < length:
            word = int(self.successors[word][rng.choice(3, p=(0.6, 0.3, 0.1))])
            tokens = tokens + self.words[word]
        return tokens[:length]


def random_layer(prefix: str, width: int, generator: torch.Generator) -> Weights:
    """One decoder layer whose q, k, v read `width` features."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])

    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    weights = {
        "self_attn.q_proj": normal(queries, width),
        "self_attn.k_proj": normal(keys, width),
        "self_attn.v_proj": normal(keys, width),
        "self_attn.o_proj": normal(HIDDEN, queries),
        "mlp.gate_proj": normal(FFN, HIDDEN),
        "mlp.up_proj": normal(FFN, HIDDEN),
        "mlp.down_proj": normal(HIDDEN, FFN),
        "input_layernorm": random_norm(HIDDEN, generator),
        "post_attention_layernorm": random_norm(HIDDEN, generator),
    }
    return {f"{prefix}.{name}.weight": tensor for name, tensor in weights.items()}


def random_norm(width: int, generator: torch.Generator) -> Tensor:
    """Norm weights in 0.5..1.5, far enough from one to be noticed when left out."""
    return 0.5 + torch.rand(width, generator=generator)


def train(weights: Weights, steps: int, rate: float, loss: Callable[[], Tensor]) -> None:
    """AdamW in place on all floating weights, which end on values that bfloat16 holds."""
    trained = [tensor.requires_grad_() for tensor in weights.values() if tensor.is_floating_point()]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {value.item():.3f}")
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = tensor.detach().bfloat16().float()


def make_target(language: Language, rng: np.random.Generator) -> Target:
    """Train the target on text of the toy language."""
    generator = torch.Generator().manual_seed(SEED)
    weights: Weights = {
        "model.embed_tokens.weight": 0.5 * torch.randn(VOCAB, HIDDEN, generator=generator),
        "model.norm.weight": random_norm(HIDDEN, generator),
    }
    for index in range(TARGET_CONFIG["num_hidden_layers"]):
        weights |= random_layer(f"model.layers.{index}", HIDDEN, generator)
    target = Target(TARGET_CONFIG, weights)

    def loss() -> Tensor:
        tokens = torch.tensor([language.text(rng, 64) for _ in range(24)])
        logits, _entering = target.forward(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    train(weights, 500, 4e-3, loss)
    return target


def continuations(
    target: Target, language: Language, rng: np.random.Generator, count: int, length: int
) -> Tensor:
    """Token ids [count, length]: six tokens of text, then the target's greedy choice."""
    tokens = torch.tensor([language.text(rng, 6) for _ in range(count)])
    with torch.inference_mode():
        while tokens.shape[1] < length:
            logits, _ = target.forward(tokens)
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    return tokens.clone()


def training_rows(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor [R], depth [R] and mask [R, R] of every (anchor, depth) pair of a text."""
    anchor = torch.arange(length - 1).repeat(K_TRAIN)
    depth = torch.arange(K_TRAIN).repeat_interleave(length - 1)
    context = (depth[None, :] == 0) & (anchor[None, :] <= anchor[:, None])
    own = (anchor[None, :] == anchor[:, None]) & (depth[None, :] <= depth[:, None])
    return anchor, depth, context | own


def make_head(target: Target, data: Tensor, rng: np.random.Generator) -> Head:
    """Train the head on the target's own answers, all depths of all anchors at once.

    Stopped early: every acceptance from none to all K should occur.
    """
    generator = torch.Generator().manual_seed(SEED + 1)
    counts = torch.bincount(data.flatten(), minlength=VOCAB)
    kept = counts.argsort(descending=True, stable=True)[:DRAFT_VOCAB].sort().values
    weights: Weights = {
        "embed_tokens.weight": target.embedding.clone(),
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN, generator=generator) / (3 * HIDDEN) ** 0.5,
        "mask_hidden": torch.randn(1, 1, 3 * HIDDEN, generator=generator),
        "layers.0.hidden_norm.weight": random_norm(HIDDEN, generator),
        **random_layer("layers.0", 2 * HIDDEN, generator),
        **random_layer("layers.1", HIDDEN, generator),
        "norm.weight": random_norm(HIDDEN, generator),
        "lm_head.weight": target.unembedding[kept].clone(),
        "d2t": kept - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, kept, True),
    }
    head = Head(HEAD_CONFIG, weights)
    length = data.shape[1]
    anchor, depth, visible = training_rows(length)
    draft_id = torch.full((VOCAB,), -100)
    draft_id[kept] = torch.arange(DRAFT_VOCAB)
    goal = anchor + 2 + depth
    with torch.inference_mode():
        _, entering = target.forward(data[:, :-1])
        taps = torch.cat([entering[index] for index in head.taps(target.num_layers)], dim=-1)
    taps = taps.clone()

    def loss() -> Tensor:
        chosen = torch.from_numpy(rng.integers(0, len(data), 16))
        tokens = data[chosen]
        mask_rows = (K_TRAIN - 1) * (length - 1)
        masks = torch.full((len(chosen), mask_rows), MASK_TOKEN)
        embedded = weights["embed_tokens.weight"][torch.cat([tokens[:, 1:], masks], dim=1)]
        unknown = weights["mask_hidden"].expand(len(chosen), mask_rows, -1)
        hidden = head.combine(torch.cat([taps[chosen], unknown], dim=1))
        states = head.forward(embedded, hidden, anchor + depth, visible)
        logits = F.linear(states, weights["lm_head.weight"])
        labels = draft_id[tokens[:, goal.clamp(max=length - 1)]]
        labels = labels.masked_fill(goal >= length, -100)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    train(weights, 70, 3e-3, loss)
    return head


def save(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    """Write `config.json` and `model.safetensors` (floating tensors in bfloat16)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {
        name: (tensor.bfloat16() if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in weights.items()
    }
    path = folder / "model.safetensors"
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)


def speculators_config(config: dict[str, Any], k: int = 5) -> dict[str, Any]:
    """The flat head config as a speculators config around the same decoder layers."""
    own = {"architectures", "draft_vocab_size", "target_hidden_size", "ptd_token_id"}
    own |= {"norm_before_residual", "norm_before_fc"}
    layer = {key: value for key, value in config.items() if key not in own}
    return {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "speculators_config": {
            "algorithm": "peagle",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": config["draft_vocab_size"],
        "target_hidden_size": config["target_hidden_size"],
        "mask_token_id": config["ptd_token_id"],
        "norm_before_residual": config.get("norm_before_residual", False),
        "norm_before_fc": config.get("norm_before_fc", False),
        "embed_requires_grad": True,
        "torch_dtype": "bfloat16",
    }


def midlayer_names(weights: Weights) -> Weights:
    """The same tensors with layer 0 called `midlayer`."""
    return {name.replace("layers.0.", "midlayer.", 1): w for name, w in weights.items()}


def main() -> None:
    """Train both and write the three folders."""
    torch.use_deterministic_algorithms(True)
    rng = np.random.default_rng(SEED)
    language = Language(rng)
    target = make_target(language, rng)
    save(HERE / "target", target.config, target.weights)
    data = continuations(target, language, rng, 96, 40)
    head = make_head(target, data, rng)
    save(HERE / "head_vllm", head.config, midlayer_names(head.weights))
    save(HERE / "head_speculators", speculators_config(head.config), head.weights)


if __name__ == "__main__":
    main()
