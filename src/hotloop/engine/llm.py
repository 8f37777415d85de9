"""LLM: a model in this process. Prompts in, text out; names and shapes are vLLM's."""

from __future__ import annotations

import difflib
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import CapacityError, HotloopError, InvalidRequestError
from hotloop.request import (
    CompletionOutput,
    FinishReason,
    Logprob,
    Request,
    RequestId,
    RequestOutput,
    TokenDelta,
    TokenLogprobs,
)
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.ceilings import cached_read_bandwidth
from hotloop.telemetry.timings import Timeline
from hotloop.telemetry.traffic import weight_bytes_per_step
from hotloop.text.chat_template import ChatTemplate, encode_chat
from hotloop.text.output_processor import OutputProcessor, TextDelta
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.catalog import entry_for
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.resolve import resolve

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]  # text, token ids, or {"prompt_token_ids": [...]}

_SEED_BITS = 53  # any JSON reader holds such an integer exactly


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one step added to an answer. The last chunk adds nothing: it carries finish_reason and the whole answer."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    output: RequestOutput | None


class LLM:
    """A loaded model. ``model``: a catalog name, a path or hf:owner/repo[/file]; keyword arguments: EngineConfig's fields.

    Output is a pure function of (weights, KV dtype, prompt, parameters, seed). Requests run one at a time; calls from
    several threads take turns.

    Raises: ModelNotFoundError, ModelFileError, CapacityError, InvalidRequestError (a bad configuration).
    """

    def __init__(self, model: str | Path, **config: Any) -> None:
        self.path = resolve(str(model))
        self.config = _engine_config(config)
        entry = entry_for(model) or entry_for(self.path)
        self._recommended = {} if entry is None else {
            f.name: getattr(entry.sampling, f.name) for f in fields(entry.sampling)
            if getattr(entry.sampling, f.name) is not None
        }  # fmt: skip
        with GGUFFile.open(self.path) as gguf:
            self.tokenizer = Tokenizer.from_metadata(gguf.metadata)
            self._runner = ModelRunner(gguf, self.config)
            self._weight_bytes_per_step = weight_bytes_per_step(self._runner.model, gguf)
        if self.tokenizer.vocab_size > self._runner.model.config.vocab_size:
            raise HotloopError(
                f"{self.path}: the tokenizer has {self.tokenizer.vocab_size} tokens, the model only "
                f"{self._runner.model.config.vocab_size}"
            )
        self._core = EngineCore(self._runner)
        self._lock = threading.Lock()
        self._deltas: dict[RequestId, list[tuple[float, int, TokenDelta]]] = {}  # of requests somebody still reads
        self._ids = count()
        self._template: ChatTemplate | None = None

    @property
    def num_threads(self) -> int:
        return self._runner.num_threads

    @property
    def isa(self) -> str:
        """The kernel set in use."""
        return self._runner.program().isa

    @property
    def max_model_len(self) -> int:
        return self._runner.max_model_len

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def default_sampling_params(self, **overrides: Any) -> SamplingParams:
        """What applies where a request leaves a parameter open: the model's recommendation, else 1.0 / off."""
        return SamplingParams(**overrides).with_defaults(self._recommended)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        parse_special: bool = False,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs in the order of the prompts.

        prompts: text, token ids, {"prompt_token_ids": ids} or {"prompt": text}, or a list of such.
        sampling_params: one for all, or one per prompt. parse_special: control-token texts in a prompt become control
        tokens instead of staying literal text. Raises: InvalidRequestError, CapacityError before anything runs.
        """
        many = _as_prompts(prompts)
        params = _per_prompt(sampling_params, len(many))
        requests = [self._request(p, s, parse_special) for p, s in zip(many, params, strict=True)]
        return [_last(self._stream(text, request)) for text, request in requests]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of conversations, through the model's chat template or another."""
        several = isinstance(messages, Sequence) and messages and isinstance(messages[0], Sequence)
        many: Sequence[Any] = messages if several and not isinstance(messages, str) else [messages]
        ids = [{"prompt_token_ids": self.chat_token_ids(conversation, chat_template)} for conversation in many]
        return self.generate(ids, sampling_params)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Iterator[StreamChunk]:
        """Complete one prompt step by step. Closing the iterator ends the request."""
        return self._stream(*self._request(prompt, sampling_params, parse_special))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        chat_template: str | None = None,
    ) -> Iterator[StreamChunk]:
        """Answer one conversation step by step."""
        return self.stream({"prompt_token_ids": self.chat_token_ids(messages, chat_template)}, sampling_params)

    def chat_token_ids(self, messages: Sequence[Message], chat_template: str | None = None) -> list[int]:
        """The prompt of a conversation. Raises InvalidRequestError if there is no chat template or it refuses.

        chat_template: a jinja2 source to use instead of the model's.
        """
        source = self.tokenizer.chat_template if chat_template is None else chat_template
        if source is None:
            raise InvalidRequestError(
                f"{self.path.name} has no chat template; use generate() (--raw on the command line)"
            )
        if self._template is None or self._template.source != source:
            self._template = ChatTemplate(source, bos_token=self._token_text("bos"), eos_token=self._token_text("eos"))
        return encode_chat(self.tokenizer, self._template, messages, max_tokens=self.max_model_len)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _token_text(self, which: str) -> str:
        token_id = self.tokenizer.bos_token_id if which == "bos" else self.tokenizer.eos_token_id
        return "" if token_id is None else self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _request(
        self, prompt: Prompt, params: SamplingParams | None, parse_special: bool
    ) -> tuple[str | None, Request]:
        timeline_start_s = time.perf_counter()
        text, ids = self._prompt_token_ids(prompt, parse_special)
        if not isinstance(params, SamplingParams | None):
            raise InvalidRequestError(f"sampling_params is {params!r:.60}; it must be SamplingParams")
        params = (params or SamplingParams()).with_defaults(self._recommended)
        room = self.max_model_len - len(ids)
        stop_ids = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else self.tokenizer.eos_token_ids)
        request = Request(
            request_id=RequestId(f"request-{next(self._ids)}"),
            prompt_token_ids=ids,
            params=params,
            seed=params.seed if params.seed is not None else secrets.randbits(_SEED_BITS),
            max_tokens=max(1, room if params.max_tokens is None else min(params.max_tokens, room)),
            stop_token_ids=frozenset(stop_ids),
            arrival_s=timeline_start_s,
        )
        self._core.check(request)
        return text, request

    def _prompt_token_ids(self, prompt: Prompt, parse_special: bool) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            unknown = prompt.keys() - {"prompt", "prompt_token_ids"}
            if unknown or not prompt:
                raise InvalidRequestError(f"a prompt mapping has 'prompt' or 'prompt_token_ids', not {sorted(unknown)}")
            kind = list if "prompt_token_ids" in prompt else str
            prompt = prompt["prompt_token_ids" if kind is list else "prompt"]
            if isinstance(prompt, str) != (kind is str):
                raise InvalidRequestError(f"a prompt mapping holds {prompt!r:.60}, which is no {kind.__name__}")
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise InvalidRequestError(f"a prompt is a text or a list of token ids, not {prompt!r:.60}")
        if isinstance(prompt, str):
            least = self.tokenizer.min_num_tokens(prompt)
            if least >= self.max_model_len:
                raise InvalidRequestError(
                    f"the prompt has {len(prompt)} characters, at least {least} tokens, and the context length is "
                    f"{self.max_model_len}; shorten the prompt"
                )
            ids = self.tokenizer.encode(prompt, parse_special=parse_special)
            if not ids:
                raise InvalidRequestError(
                    "the prompt is empty and this model has no BOS token to start from; give a text"
                )
            return prompt, ids
        ids = list(prompt)
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise InvalidRequestError("prompt_token_ids must be a list of integers")
        return None, ids

    def _stream(self, text: str | None, request: Request) -> Iterator[StreamChunk]:
        params = request.params
        processor = OutputProcessor(
            self.tokenizer, stop=params.stop_strings, include_stop_str=params.include_stop_str_in_output,
            min_tokens=params.min_tokens, skip_special_tokens=params.skip_special_tokens,
            prompt_ids=request.prompt_token_ids,
        )  # fmt: skip
        choice = CompletionOutput(0, "", [], [] if params.logprobs is not None else None, None)
        output = RequestOutput(request.request_id, text, list(request.prompt_token_ids), [choice], False, request.seed)
        timeline = Timeline(request.arrival_s)
        logprobs: list[TokenLogprobs] = []  # of all drawn tokens; the processor decides which belong to the answer
        with self._lock:
            self._deltas[request.request_id] = []
            self._core.add(request)
        try:
            while not output.finished:
                for now_s, kv_bytes, delta in self._next_deltas(request.request_id):
                    if delta.error is not None:
                        raise HotloopError(delta.error)
                    timeline.record(now_s, len(delta.token_ids), kv_bytes)
                    logprobs += delta.logprobs
                    new = processor.push(delta.token_ids, ends_with_stop_token=delta.finish_reason == "stop")
                    yield from self._emit(output, new, logprobs)
                    if new.finish_reason is None and delta.finish_reason is not None:
                        if delta.finish_reason == "stop" and delta.token_ids[-1] not in self.tokenizer.eos_token_ids:
                            choice.stop_reason = delta.token_ids[-1]
                        yield from self._emit(output, processor.finish(delta.finish_reason), logprobs)
                    if choice.finish_reason is not None:
                        self._finish(output, timeline)
                        yield StreamChunk("", [], choice.finish_reason, output)
                        break
        finally:
            with self._lock:
                self._core.abort(request.request_id)
                self._deltas.pop(request.request_id, None)

    def _emit(self, output: RequestOutput, new: TextDelta, logprobs: Sequence[TokenLogprobs]) -> Iterator[StreamChunk]:
        """Append what became certain to the answer, and hand it out unless there is nothing."""
        (choice,) = output.outputs
        if choice.logprobs is not None:
            begin = len(choice.token_ids)
            choice.logprobs += [self._logprob_entry(entry) for entry in logprobs[begin : begin + len(new.token_ids)]]
        choice.text += new.text
        choice.token_ids += new.token_ids
        if new.stop is not None:
            choice.stop_reason = new.stop
        if new.finish_reason is not None:
            choice.finish_reason = "stop" if new.finish_reason == "stop" else "length"
        if new.text or new.token_ids:
            yield StreamChunk(new.text, list(new.token_ids), None, None)

    def _next_deltas(self, request_id: RequestId) -> list[tuple[float, int, TokenDelta]]:
        """Deltas of one request; steps the core until there are some. Others' deltas wait for their readers."""
        with self._lock:
            while not self._deltas[request_id]:
                deltas = self._core.step()
                record = self._core.last_step
                now_s = time.perf_counter()
                for delta in deltas:
                    self._deltas[delta.request_id].append((now_s, record.kv_bytes if record else 0, delta))
            ready, self._deltas[request_id] = self._deltas[request_id], []
            return ready

    def _finish(self, output: RequestOutput, timeline: Timeline) -> None:
        output.finished = True
        try:
            ceiling = cached_read_bandwidth(self.num_threads).read_bandwidth_bytes_per_s
        except CapacityError:  # the answer is there; only the ceiling stays unknown
            ceiling = 0.0
        output.timings = timeline.timings(self._weight_bytes_per_step, ceiling)

    def _logprob_entry(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """vLLM's shape: token id -> Logprob, the drawn token first."""

        def text(token_id: int) -> str:
            return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

        result = {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))}
        for rank, (token_id, logprob) in enumerate(entry.top, start=1):
            result.setdefault(token_id, Logprob(logprob, rank, text(token_id)))
        return result


def _engine_config(options: Mapping[str, Any]) -> EngineConfig:
    known = [f.name for f in fields(EngineConfig)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidRequestError(
                f"unknown option {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
            )
    return EngineConfig(**options)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise InvalidRequestError(f"prompts are texts or lists of token ids, not {prompts!r:.60}")
    many = list(prompts)
    return [many] if many and all(isinstance(p, int) for p in many) else many


def _per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence):
        raise InvalidRequestError(f"sampling_params is {params!r:.60}; it must be SamplingParams, one or a list of them")
    if len(params) != num_prompts:
        raise InvalidRequestError(
            f"there are {num_prompts} prompts and {len(params)} sampling_params; give one or as many"
        )
    return list(params)


def _last(chunks: Iterator[StreamChunk]) -> RequestOutput:
    for chunk in chunks:
        if chunk.output is not None:
            return chunk.output
    raise AssertionError("a stream ends with its output")
