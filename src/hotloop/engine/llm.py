"""LLM: a model in this process. Prompts in, text out; names and shapes are vLLM's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hotloop.config import EngineConfig
from hotloop.engine.chats import Chat, Message
from hotloop.engine.client import EngineInfo
from hotloop.engine.generation import Generation, GenerationError, StreamChunk, as_hotloop_error
from hotloop.engine.inputs import Ask, InputProcessor, Prompt
from hotloop.engine.loading import load_engine
from hotloop.engine.resume import Resume
from hotloop.engine.router import DeltaRouter, Mailbox
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import RequestId, RequestOutput, Timeline
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.timings import timings
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.quantized_model import Progress

Key = TypeVar("Key")

_MAX_OPEN = 1024  # prompts that `answer_each` hands to the engine before the first of them is done


class LLM:
    """A loaded model. ``model``: a catalog name, a path or hf:owner/repo[/file]; keyword arguments: EngineConfig's fields.

    Output is a pure function of (weights, KV dtype, prompt, parameters, seed). All requests that are there run together,
    those of several threads too; the engine runs while somebody reads an answer.

    Raises: ModelNotFoundError, ModelFileError, CapacityError, InvalidRequestError (a bad configuration).
    """

    def __init__(self, model: str | Path, *, progress: Progress | None = None, **config: Any) -> None:
        """progress: told about quantizing (``quantize="q4_0"``, say): bytes of the source done, and to do in all."""
        engine = load_engine(model, config, progress)
        self.path = engine.path
        self._inputs = engine.inputs
        self._runner = engine.runner
        self._core = engine.core
        self._client = engine.client
        self._router = DeltaRouter(engine.client)
        self._ceiling = engine.ceiling_bytes_per_s

    @property
    def config(self) -> EngineConfig:
        """With every value that was left open resolved."""
        return self._client.info.config

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._inputs.tokenizer

    @property
    def num_threads(self) -> int:
        return self._runner.num_threads

    @property
    def isa(self) -> str:
        """The kernel set in use."""
        return self._runner.isa

    @property
    def max_model_len(self) -> int:
        return self._runner.max_model_len

    @property
    def inputs(self) -> InputProcessor:
        """What makes requests of prompts."""
        return self._inputs

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def default_sampling_params(self, **overrides: Any) -> SamplingParams:
        """What applies where a request leaves a parameter open: the model's recommendation, else 1.0 / off."""
        return self._inputs.resolved(SamplingParams(**overrides))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        parse_special: bool = False,
    ) -> list[RequestOutput]:
        """Complete the prompts, all of them together; outputs in the order of the prompts.

        prompts: text, token ids, {"prompt_token_ids": ids} or {"prompt": text}, or a list of such.
        sampling_params: one for all, or one per prompt. priority: one per prompt, lower runs first (under
        scheduling_policy="priority"). parse_special: control-token texts in a prompt become control tokens instead of
        staying literal text. Raises: InvalidRequestError, CapacityError before anything runs; after all have ended, the
        error of the only prompt, or a GenerationError with the outputs of those that did not fail.
        """
        many = _as_prompts(prompts)
        params = _per_prompt(sampling_params, len(many))
        if not isinstance(priority, Sequence | None):
            raise InvalidRequestError(f"priority is {priority!r:.60}; it must be a list, one integer per prompt")
        ranks = [0] * len(many) if priority is None else list(priority)
        if len(ranks) != len(many):
            raise InvalidRequestError(f"there are {len(many)} prompts and {len(ranks)} priorities; give one for each")
        asks = [
            self._checked(self._inputs.ask(p, s, parse_special=parse_special, priority=rank))
            for p, s, rank in zip(many, params, ranks, strict=True)
        ]
        answers: list[RequestOutput | None] = [None] * len(asks)
        errors: dict[int, HotloopError] = {}
        for index, answer in self._answer(enumerate(asks)):
            if isinstance(answer, HotloopError):
                errors[index] = answer
            else:
                answers[index] = answer
        if len(asks) == 1 and errors:
            raise errors[0]
        if errors:
            raise GenerationError(errors, answers)
        return [answer for answer in answers if answer is not None]

    def answer_each(
        self, jobs: Iterable[tuple[Key, Prompt, SamplingParams | None]]
    ) -> Iterator[tuple[Key, RequestOutput | HotloopError]]:
        """Complete any number of prompts, in the order in which they are done.

        jobs: a key of the caller's, a prompt, its parameters; taken only as fast as they are answered. Yields each key with
        its answer or the error it ended with.
        """
        refused: deque[tuple[Key, HotloopError]] = deque()

        def asks() -> Iterator[tuple[Key, Ask]]:
            for key, prompt, params in jobs:
                try:
                    yield key, self._checked(self._inputs.ask(prompt, params))
                except HotloopError as error:
                    refused.append((key, error))

        for answered in self._answer(asks()):
            yield answered
            while refused:
                yield refused.popleft()
        yield from refused

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of conversations, through the model's chat template or another.

        tools, tool_choice, parallel_tool_calls: as in OpenAI's requests (docs/tool_calls.md). chat_template_kwargs: more
        variables for the template. A choice's ``content``, ``reasoning`` and ``tool_calls`` are its ``text`` in parts.
        """
        several = isinstance(messages, Sequence) and messages and isinstance(messages[0], Sequence)
        many: Sequence[Any] = messages if several and not isinstance(messages, str) else [messages]
        chats = [
            Chat(conversation, tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
            for conversation in many
        ]
        return self.generate(chats, sampling_params)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Iterator[StreamChunk]:
        """Complete one prompt step by step. Closing the iterator ends the request."""
        return self._stream(self._checked(self._inputs.ask(prompt, sampling_params, parse_special=parse_special)))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamChunk]:
        """Answer one conversation step by step; parameters as ``chat``."""
        chat = Chat(messages, tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        return self.stream(chat, sampling_params)

    def resume(self, resume: Resume) -> Iterator[StreamChunk]:
        """Go on with a request, here or elsewhere begun: chunks of what it had not said; the output is the whole."""
        return self._stream(self._checked(self._inputs.resume(resume)))

    def chat_token_ids(self, messages: Sequence[Message], chat_template: str | None = None) -> list[int]:
        """The prompt of a conversation. Raises InvalidRequestError if there is no chat template or it refuses.

        chat_template: a jinja2 source to use instead of the model's.
        """
        return self._inputs.render(Chat(messages, chat_template=chat_template)).token_ids

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _checked(self, ask: Ask) -> Ask:
        for request in ask.requests:
            self._client.check(request)
        return ask

    def _stream(self, ask: Ask) -> Iterator[StreamChunk]:
        generation = Generation(ask, self.tokenizer, self._timings)
        with Mailbox(self._router) as mailbox:
            mailbox.add(ask.requests)
            while not generation.is_finished:
                for delta in mailbox.next():
                    chunks = generation.push(delta)
                    mailbox.close(generation.take_excess())
                    yield from chunks

    def _answer(self, asks: Iterable[tuple[Key, Ask]]) -> Iterator[tuple[Key, RequestOutput | HotloopError]]:
        """Run them, at most _MAX_OPEN at a time; each answer when it is complete."""
        source = iter(asks)
        open_: dict[RequestId, tuple[Key, Generation]] = {}
        num_open = 0
        with Mailbox(self._router) as mailbox:
            while True:
                while num_open < _MAX_OPEN and (item := next(source, None)) is not None:
                    key, ask = item
                    generation = Generation(ask, self.tokenizer, self._timings)
                    open_ |= {request.request_id: (key, generation) for request in ask.requests}
                    mailbox.add(ask.requests)
                    num_open += 1
                if not num_open:
                    return
                for delta in mailbox.next():
                    if delta.request_id not in open_:
                        continue
                    key, generation = open_[delta.request_id]
                    answer: RequestOutput | HotloopError = generation.output
                    try:
                        generation.push(delta)
                    except Exception as error:
                        answer = as_hotloop_error(error)
                    mailbox.close(generation.take_excess())
                    if answer is generation.output and not generation.is_finished:
                        continue
                    ids = [request.request_id for request in generation.requests]
                    if answer is not generation.output:
                        mailbox.close(ids)
                    for request_id in ids:
                        del open_[request_id]
                    num_open -= 1
                    yield key, answer

    def _timings(self, timeline: Timeline, num_tokens: int) -> dict[str, float | int]:
        return timings(timeline, num_tokens, self._runner.weight_bytes_per_step, self._ceiling)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    if isinstance(prompts, str | Mapping | Chat):
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
