"""`LLM`: text or token ids in, text out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from peagle.arguments import integer, strict_arguments
from peagle.backends import select_backend
from peagle.config import (
    MAX_DRAFTS,
    engine_config,
    eos_token_ids,
    head_folder,
    target_folder,
    warn_about_head,
)
from peagle.engine import Engine, Reported, RequestUpdate
from peagle.errors import (
    ConfigError,
    GenerationError,
    HeadMissingError,
    PromptError,
    TokenizerMissingError,
)
from peagle.heads.peagle import PEagleHead
from peagle.kv_cache import DEFAULT_BLOCK_SIZE, KvCache
from peagle.models.config import DecoderConfig
from peagle.models.llama import Decoder
from peagle.params import SamplingParams
from peagle.propose.choose import check_drafting
from peagle.propose.once import drafts_from_scratch
from peagle.propose.peagle import PEagleProposer
from peagle.runner import ModelRunner
from peagle.stop_checker import StopChecker
from peagle.tokenizer import TOKENIZER_FILE, Tokenizer

Message = Mapping[str, object]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


Prompt = str | TokensPrompt
StepListener = Callable[[list[RequestUpdate]], None]


@dataclass(frozen=True)
class Logprob:
    """How likely a token was."""

    logprob: float
    """Natural logarithm of its probability."""
    rank: int
    """1 for the likeliest token."""
    decoded_token: str | None
    """Its text, where there is a tokenizer."""


@dataclass
class CompletionOutput:
    """One generated text."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    """`stop`, `length`, `error`, `abort` (the stream was closed), or `None` while it goes on."""
    seed: int
    """What the noise was keyed with; the same seed gives the same text."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Of each token id: of the token itself and of the likeliest ones, if asked for."""
    error: str | None = None
    """What went wrong, if finish_reason is `error`."""
    num_windows: int = 0
    """Steps that verified a draft."""
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass
class RequestOutput:
    """What became of one prompt."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the first output."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the first output."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the first output."""
        return self.outputs[0].finish_reason


@strict_arguments
class LLM:
    """A target model, with or without a P-EAGLE head.

    Args:
        model: a Hugging Face model folder, or `demo` for SmolLM2-135M-Instruct.
        head: a head folder, `demo`, `None` for plain decoding, or `auto`: the shipped head for
            the demo target, none otherwise.
        dtype: `auto` (bfloat16), `bfloat16` or `float32`.
        device: `cpu`, `cuda` or `cuda:N`.
        num_speculative_tokens: drafts a step (K); 0 is off. By default 5 with a head.
        draft_shape: `tree` puts the K drafts where the head expects most of them; `chain` takes
            one token at each of K depths. By default a tree where verification can take one.
        transition: use the head's transition table, if it has one; sampled drafts do not.
        verification: how drafts are verified above temperature 0. `coupled` makes the text a
            function of the seed alone; `rejection` and `block` keep its law only. At temperature
            0 the argmax is followed in any case.
        drafts: how the head chooses tokens above temperature 0: `greedy`, `coupled` (over the
            target's own noise) or `sampled`. By default `coupled` under coupled verification,
            and `sampled`, which alone is legal there, under the others.
        max_model_len: longest context in tokens; by default the model's, at most 8192.
        max_num_seqs: requests that run together.
        max_num_batched_tokens: rows of a step.
        block_size: tokens of a KV block, a multiple of 16.
        num_kv_blocks: KV blocks; by default enough for 16,384 tokens or one longest context.
        row_invariant: `True` insists on a backend whose rows keep their bits in any batch;
            `None` and `False` want no promise, and switch nothing off.

    Raises:
        PeagleError: a subclass that names what does not fit.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        head: str | Path | None = "auto",
        dtype: str = "auto",
        device: str = "cpu",
        num_speculative_tokens: int | None = None,
        draft_shape: str | None = None,
        transition: bool = True,
        verification: str = "coupled",
        drafts: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        block_size: int = DEFAULT_BLOCK_SIZE,
        num_kv_blocks: int | None = None,
        row_invariant: bool | None = None,
    ) -> None:
        drafts, draft_shape = check_drafting(verification, drafts, draft_shape)
        folder, head_dir = target_folder(model), head_folder(head, model)
        config = DecoderConfig.from_folder(folder)
        sizes = engine_config(
            config,
            has_head=head_dir is not None,
            num_speculative_tokens=num_speculative_tokens,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            verification=verification,
        )
        if not isinstance(transition, bool):
            raise ConfigError(f"transition is {transition!r}, expected True or False")
        self.verification, self.drafts, self.draft_shape = verification, drafts, draft_shape
        self.max_model_len = sizes.max_model_len
        self.num_speculative_tokens = sizes.num_speculative_tokens
        backend = select_backend(device, dtype)
        if row_invariant and not backend.row_invariant:
            raise ConfigError(
                f"row_invariant is True, but the {backend.name} backend does not promise it",
                hint="use device='cpu', or leave row_invariant out",
            )
        self.target = Decoder.load(folder, backend, max_position=self.max_model_len)
        self.tokenizer = (
            Tokenizer.from_folder(folder) if (folder / TOKENIZER_FILE).is_file() else None
        )
        self._eos_token_ids = eos_token_ids(folder, config, self.tokenizer)
        self.head: PEagleHead | None = None
        if head_dir is not None:
            self.head = PEagleHead.load(
                head_dir, self.target, max_position=self.max_model_len, transition=transition
            )
            warn_about_head(self.head.config, self.num_speculative_tokens, folder)
        cache = KvCache.allocate(self.target, sizes.num_blocks, sizes.block_size)
        proposer = (
            PEagleProposer(self.head, cache, shape=draft_shape, drafts=drafts)
            if self.head is not None and self.num_speculative_tokens
            else None
        )
        self.engine = Engine(ModelRunner(self.target, cache, proposer), proposer, sizes)
        self._requests: dict[int, _Request] = {}
        self._next_id = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        on_step: StepListener | None = None,
    ) -> list[RequestOutput]:
        """Continues raw text or token ids.

        Args:
            prompts: one prompt or several; a prompt is a string or
                `{"prompt_token_ids": [...]}`.
            params: for all of them; greedy by default.
            on_step: told what each engine step did, right after it.

        Returns:
            One output for each prompt, in order. A request that fails on the way (NaN logits)
            ends with finish_reason `error`; its neighbours go on.

        Raises:
            PeagleError: a bad prompt or parameter; then nothing was started.
            GenerationError: the only prompt failed on the way.
        """
        several: list[Prompt] = (
            list(prompts)
            if isinstance(prompts, Iterable) and not isinstance(prompts, str | Mapping)
            else [prompts]
        )
        return self._run([self._encode(p) for p in several], params or SamplingParams(), on_step)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template."""
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if one else messages
        encoded = [self.encode_chat(c) for c in conversations]  # type: ignore[arg-type]
        return self._run(encoded, params or SamplingParams())

    def stream(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None
    ) -> Generator[tuple[str, RequestOutput], None, None]:
        """Generates for one prompt and yields (new text, output so far) after each step.

        The request is checked and queued by this call. Closing the iterator aborts it; the output
        then has finish_reason `abort`.

        Raises:
            PeagleError: a bad prompt or parameter.
            GenerationError: while iterating: the request failed on the way.
        """
        updates = self._stream(self._add(prompt_token_ids, params or SamplingParams()))
        next(updates)  # into its `try`: from here on, closing it frees the request
        return updates

    def _stream(self, request: _Request) -> Generator[tuple[str, RequestOutput], None, None]:
        try:
            yield "", request.output
            finished = False
            while not finished:
                if not request.news:
                    self._step()
                finished = request.completion.finish_reason is not None
                if request.news:
                    yield request.take_news(), request.output
            if request.completion.error is not None:
                raise GenerationError(request.completion.error)
        finally:
            self._drop(request)

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """The K draft ids that the head makes after these committed ids.

        Computed from scratch; the engine's cached path drafts the same. A single token has no
        hidden state to draft from: `[]`.

        Raises:
            HeadMissingError: this `LLM` has no head.
            PromptError: no ids, or ids outside the vocabulary.
            ConfigError: k negative or above the cap.
        """
        if self.head is None:
            raise HeadMissingError("propose needs a head", hint="choose a head for this target")
        integer("k", k, 0, MAX_DRAFTS)
        ids = self._checked_ids(token_ids)
        if len(ids) + k > self.max_model_len:
            raise PromptError(
                f"{len(ids)} tokens and {k} drafts are longer than max_model_len "
                f"{self.max_model_len}"
            )
        return drafts_from_scratch(self.target, self.head, np.asarray(ids, np.int32), k)

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text."""
        return self._need_tokenizer().encode(text)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""
        return self._need_tokenizer().apply_chat_template(messages)

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self._need_tokenizer().encode(prompt)
        if isinstance(prompt, Mapping) and set(prompt) == {"prompt_token_ids"}:
            return prompt["prompt_token_ids"]
        raise PromptError(
            f"a prompt is {type(prompt).__name__}: {str(prompt)[:60]!r}",
            hint='give a string or {"prompt_token_ids": [...]}',
        )

    def _checked_ids(self, token_ids: Sequence[int]) -> list[int]:
        if not isinstance(token_ids, Iterable):
            raise PromptError(f"the prompt is {token_ids!r}, expected a sequence of token ids")
        ids = list(token_ids)
        if not ids:
            raise PromptError("the prompt is empty", hint="give at least one token")
        vocab = self.target.config.vocab_size
        for index, token_id in enumerate(ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise PromptError(f"prompt token {index} is {token_id!r}, expected an integer")
            if not 0 <= token_id < vocab:
                raise PromptError(
                    f"prompt token {index} is {token_id}, expected an id from 0 to {vocab - 1}"
                )
        return [int(i) for i in ids]

    def _need_tokenizer(self, parameter: str = "") -> Tokenizer:
        if self.tokenizer is None:
            reason = f"{parameter} needs a tokenizer: " if parameter else ""
            raise TokenizerMissingError(
                f"{reason}the model folder has no {TOKENIZER_FILE}",
                hint="add the model's tokenizer.json, or give token ids from Python "
                '({"prompt_token_ids": [...]})',
            )
        return self.tokenizer

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_step: StepListener | None = None,
    ) -> list[RequestOutput]:
        requests: list[_Request] = []
        try:
            for ids in prompts:
                requests.append(self._add(ids, params))
            while any(r.completion.finish_reason is None for r in requests):
                updates = self._step()
                if on_step is not None:
                    on_step(updates)
        finally:
            for request in requests:
                self._drop(request)
        if len(requests) == 1 and requests[0].completion.error is not None:
            raise GenerationError(requests[0].completion.error)
        return [r.output for r in requests]

    def _step(self) -> list[RequestUpdate]:
        """One engine step; whoever waits for a request finds what it brought there."""
        updates = self.engine.step()
        for update in updates:
            self._requests[update.request_id].take(update)
        return updates

    def _drop(self, request: _Request) -> None:
        self.engine.abort(request.request_id)
        self._requests.pop(request.request_id, None)
        if request.completion.finish_reason is None:
            request.completion.finish_reason = "abort"

    def _add(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> _Request:
        if not isinstance(params, SamplingParams):
            raise ConfigError(
                f"params is a {type(params).__name__}, expected one SamplingParams",
                hint="the same parameters hold for all prompts of a call",
            )
        ids = self._checked_ids(prompt_token_ids)
        params.check_vocabulary(self.target.config.vocab_size)
        checker = None
        if self.tokenizer is not None or params.stop_strings:
            checker = StopChecker(
                self._need_tokenizer("stop"), params.stop_strings, min_tokens=params.min_tokens
            )
        bad_words = []
        for word in params.bad_word_strings:
            bad_words += self._need_tokenizer("bad_words").word_ids(word)
        request_id, self._next_id = self._next_id, self._next_id + 1
        seed = self.engine.add(
            request_id,
            ids,
            params,
            eos_token_ids=self._eos_token_ids,
            bad_words=bad_words,
            stop_check=checker.check if checker is not None and params.stop_strings else None,
        )
        completion = CompletionOutput("", [], None, seed)
        if params.logprobs is not None:
            completion.logprobs = []
        output = RequestOutput(ids, [completion])
        request = _Request(request_id, output, checker, self.tokenizer)
        self._requests[request_id] = request
        return request


@dataclass
class _Request:
    """A request under way."""

    request_id: int
    output: RequestOutput
    checker: StopChecker | None
    tokenizer: Tokenizer | None
    news: list[str] = field(default_factory=list)
    """Text of each step that nobody has taken yet."""

    @property
    def completion(self) -> CompletionOutput:
        return self.output.outputs[0]

    def take(self, update: RequestUpdate) -> None:
        """Adds what a step brought."""
        completion = self.completion
        completion.token_ids.extend(update.token_ids)
        if completion.logprobs is not None:
            completion.logprobs.extend(map(self._logprobs, update.logprobs))
        completion.finish_reason = update.finish_reason
        completion.num_windows += update.num_drafted > 0
        completion.num_drafted += update.num_drafted
        completion.num_accepted += update.num_accepted
        completion.error = update.error
        new = ""
        if self.checker is not None:
            finished = update.finish_reason is not None
            new = self.checker.commit(update.token_ids, finished=finished)
        completion.text += new
        self.news.append(new)

    def _logprobs(self, reported: Reported) -> dict[int, Logprob]:
        token_id, logprob, rank, likeliest = reported
        found = {token_id: Logprob(logprob, rank, self._decode(token_id))}
        for rank, (other, logprob) in enumerate(likeliest, 1):
            found.setdefault(other, Logprob(logprob, rank, self._decode(other)))
        return found

    def _decode(self, token_id: int) -> str | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def take_news(self) -> str:
        """The text since the last call."""
        text = "".join(self.news)
        self.news.clear()
        return text
