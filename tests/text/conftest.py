"""Small tokenizers of the three families: byte level, byte fallback, metaspace."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from peagle.tokenizer import Tokenizer

CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "stop and go, stop and go: user and assistant",
    "日本語の文字と絵文字 🙂🙃👩‍💻 naïve café œuvre",
    "def f(x):\n    return x + 1\n",
) * 3
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level() -> Tokenizer:
    """A byte-level BPE tokenizer, as GPT-2, Llama 3, Qwen and SmolLM have."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    # One added token that is not special: it stays in the text.
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return Tokenizer(backend, named_tokens={"eos_token": "<|im_end|>"})


def byte_fallback() -> Tokenizer:
    """A SentencePiece-like tokenizer with byte tokens, as Llama 2 and Mistral have."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    characters = sorted(set("abcdefghijklmnopqrstuvwxyz,.:é日"))
    tokens += ["▁", *characters, "th", "▁th", "the", "▁the", "st", "sto", "stop", "▁a", "▁▁"]
    merges = [
        ("t", "h"), ("▁", "th"), ("th", "e"), ("▁th", "e"), ("s", "t"), ("st", "o"),
        ("sto", "p"), ("▁", "a"), ("▁", "▁"),
    ]  # fmt: skip
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, named_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def metaspace() -> Tokenizer:
    """A tokenizer with the metaspace decoder, as T5-like models have."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, named_tokens={"eos_token": "</s>"})


FAMILIES = {"byte_level": byte_level, "byte_fallback": byte_fallback, "metaspace": metaspace}


@pytest.fixture(scope="session", params=FAMILIES)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each family in turn."""
    return FAMILIES[request.param]()


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """The byte-level one."""
    return byte_level()


@pytest.fixture(scope="session")
def fallback_tokenizer() -> Tokenizer:
    """The byte-fallback one."""
    return byte_fallback()
