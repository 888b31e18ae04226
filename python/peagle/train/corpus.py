"""The training corpus: continuations that the target itself wrote, as token ids on disk."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from peagle.errors import DatasetError
from peagle.files import make_folder, write_atomically
from peagle.models.batch import Batch, Int32Array
from peagle.models.config import read_json
from peagle.models.llama import Decoder

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Sample:
    """One prompt and its continuation."""

    token_ids: Int32Array
    """[prompt_len + answer_len]"""
    prompt_len: int


@dataclass(frozen=True)
class CorpusSpec:
    """What decides a corpus, bit for bit; stored beside it."""

    target_sha256: str
    num_answers: int
    answer_len: int
    greedy_share: float
    """Share of answers decoded greedily; the others are sampled."""
    temperature: float
    seed: int
    batch: int
    """Answers generated together."""
    prompts_sha256: str
    """Of the tokenized prompts that are continued."""


class Corpus:
    """A folder of generated batches. Batch i is written once and atomically, so that generation
    resumes after any interruption.
    """

    def __init__(self, folder: Path, spec: CorpusSpec) -> None:
        self.folder = folder
        self.spec = spec
        self._cache: dict[int, list[Sample]] = {}
        make_folder(folder)
        record = folder / "corpus.json"
        if record.exists():
            found, wanted = read_json(record), asdict(spec)
            differing = [k for k in wanted if found.get(k) != wanted[k]]
            if differing:
                key = differing[0]
                raise DatasetError(
                    f"{record}: the corpus was generated with {key} {found.get(key)!r}, "
                    f"this run asks for {wanted[key]!r}",
                    hint="use another --out folder or the former options",
                )
        write_atomically(record, json.dumps(asdict(spec), indent=2).encode())

    @property
    def num_batches(self) -> int:
        """Batches of a complete corpus."""
        return -(-self.spec.num_answers // self.spec.batch)

    def members(self, index: int) -> range:
        """Which prompts batch `index` continues."""
        return range(
            index * self.spec.batch, min((index + 1) * self.spec.batch, self.spec.num_answers)
        )

    def greedy(self) -> list[bool]:
        """For every sample, in order, whether it was decoded greedily."""
        return [bool(g) for index in range(self.num_batches) for g in self._greedy(index)]

    def _greedy(self, index: int) -> npt.NDArray[np.bool_]:
        rng = np.random.default_rng([self.spec.seed, index])
        return rng.random(len(self.members(index))) < self.spec.greedy_share

    def missing(self) -> list[int]:
        """Indices of the batches that are not there yet."""
        return [i for i in range(self.num_batches) if not self._path(i).exists()]

    def generate(
        self,
        target: Decoder,
        prompts: Sequence[Sequence[int]],
        progress: Callable[[int], None] = lambda answers: None,
    ) -> None:
        """Generates the missing batches.

        Args:
            target: the model that writes.
            prompts: at least `num_answers` tokenized prompts.
            progress: told the number of answers after each batch.
        """
        spec = self.spec
        for index in self.missing():
            chosen = [prompts[i] for i in self.members(index)]
            temperatures = np.where(self._greedy(index), 0.0, spec.temperature)
            rng = np.random.default_rng([spec.seed, index, 1])
            answers = continue_prompts(target, chosen, spec.answer_len, temperatures, rng)
            arrays = {
                f"{i:04d}": np.concatenate([np.asarray(prompt, np.int32), answer])
                for i, (prompt, answer) in enumerate(zip(chosen, answers, strict=True))
            }
            content = io.BytesIO()
            np.savez(content, allow_pickle=False, **arrays)
            write_atomically(self._path(index), content.getvalue())
            progress(len(chosen))

    def load(self, index: int) -> list[Sample]:
        """The samples of batch `index`."""
        if index not in self._cache:
            path = self._path(index)
            try:
                with np.load(path) as arrays:
                    answers = [arrays[name] for name in sorted(arrays.files)]
            except (ValueError, EOFError, BadZipFile) as error:
                raise DatasetError(
                    f"{path} cannot be read: {error}", hint="delete it: it is generated again"
                ) from error
            self._cache[index] = [Sample(ids, len(ids) - self.spec.answer_len) for ids in answers]
        return self._cache[index]

    def samples(self) -> list[Sample]:
        """Every sample, in order."""
        return [sample for index in range(self.num_batches) for sample in self.load(index)]

    def token_counts(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """How often each token occurs in the continuations."""
        counts = np.zeros(vocab_size, np.int64)
        for sample in self.samples():
            answer = sample.token_ids[sample.prompt_len :]
            counts += np.bincount(answer, minlength=vocab_size)
        return counts

    def _path(self, index: int) -> Path:
        return self.folder / f"batch-{index:05d}.npz"


def continue_prompts(
    target: Decoder,
    prompts: Sequence[Sequence[int]],
    answer_len: int,
    temperatures: npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> Int32Array:
    """Continues prompts by exactly `answer_len` tokens, past any end-of-sequence token.

    Returns:
        [len(prompts), answer_len] int32
    """
    lengths = np.array([len(p) for p in prompts], np.int32)
    tables, num_blocks = block_tables(lengths + answer_len)
    cache = target.new_cache(num_blocks, BLOCK_SIZE)
    answers = np.zeros((len(prompts), answer_len), np.int32)
    rows = [np.asarray(p, np.int32) for p in prompts]
    context = np.zeros(len(prompts), np.int32)
    for step in range(answer_len):
        batch = dense_batch(rows, context, tables)
        hidden, _ = target.forward(batch, cache, BLOCK_SIZE)
        logits = target.backend.tensor(target.logits(hidden, batch.query_start[1:] - 1))
        answers[:, step] = sample_tokens(logits.float().cpu().numpy(), temperatures, rng)
        context = context + np.diff(batch.query_start).astype(np.int32)
        rows = [answers[i, step : step + 1] for i in range(len(prompts))]
    return answers


def sample_tokens(
    logits: npt.NDArray[np.float32],
    temperatures: npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> Int32Array:
    """Argmax where the temperature is 0, else a Gumbel-max draw."""
    scores = logits.copy()
    sampled = np.flatnonzero(temperatures > 0)
    if sampled.size:
        # Gumbel noise is minus the logarithm of an exponential variate.
        # In float64: a float32 variate is 0 often enough to draw impossible tokens.
        race = rng.standard_exponential((sampled.size, logits.shape[1]))
        scores[sampled] = logits[sampled] / temperatures[sampled, None] - np.log(race)
    best: Int32Array = scores.argmax(-1).astype(np.int32)
    return best


def block_tables(lengths: Int32Array) -> tuple[Int32Array, int]:
    """Gives each sequence its own run of blocks.

    Returns:
        The tables [R, M], padded with 0, and the number of blocks.
    """
    blocks = -(-lengths // BLOCK_SIZE)
    starts = np.concatenate([[0], np.cumsum(blocks)])
    tables = np.zeros((len(lengths), int(blocks.max())), np.int32)
    for i, count in enumerate(blocks.tolist()):
        tables[i, :count] = np.arange(starts[i], starts[i] + count)
    return tables, int(starts[-1])


def dense_batch(rows: Sequence[Int32Array], context: Int32Array, tables: Int32Array) -> Batch:
    """A batch of chains: `rows[i]` follows `context[i]` tokens of sequence i."""
    widths = [len(r) for r in rows]
    query_start = np.concatenate([[0], np.cumsum(widths)]).astype(np.int32)
    inner = np.concatenate([np.arange(w, dtype=np.int32) for w in widths])
    request = np.repeat(np.arange(len(rows)), widths)
    positions = (context[request] + inner).astype(np.int32)
    slots = tables[request, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return Batch(
        input_ids=np.concatenate(rows).astype(np.int32),
        positions=positions,
        slots=slots.astype(np.int32),
        query_start=query_start,
        context_lens=context.astype(np.int32),
        parents=inner - 1,
        block_tables=tables,
    )
