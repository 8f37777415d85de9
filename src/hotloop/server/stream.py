"""Answers as server-sent events in OpenAI's chunk shapes. Every token passes here: structs and one encoder, no pydantic.

Of each choice: an opening chunk (chat: its role; echo: the prompt; prompt_logprobs), content chunks whose finish_reason is
null, and one chunk that adds nothing and carries the finish_reason; the last of a prompt has its timings too. Then, if asked
for, usage; then [DONE].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from hotloop.engine.generation import StreamChunk
from hotloop.engine.inputs import Ask
from hotloop.request import MessagePart, RequestOutput
from hotloop.server.bodies import Body
from hotloop.server.responses import (
    Entry,
    Head,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    output_offsets,
    prompt_text,
    timings_of,
    usage,
    usage_of,
    vllm_logprobs,
)
from hotloop.text.text_offsets import TextOffsets
from hotloop.text.tokenizer import Tokenizer

_DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()

Logprobs = dict[str, Any] | None
Usage = dict[str, Any] | UnsetType | None  # null where it is asked for but not in every chunk
Timings = dict[str, float | int] | UnsetType | None
PromptLogprobs = list[dict[int, dict[str, Any]] | None] | UnsetType | None
PromptEntries = Sequence[Entry | None] | None


class _Function(Struct):
    name: str | UnsetType = UNSET
    arguments: str = ""


class _Call(Struct):
    """Of a tool call: first its id, type and name, with no arguments; then pieces of them."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: _Function | UnsetType = UNSET


class _Delta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _ChatChoice(Struct):
    index: int
    delta: _Delta
    logprobs: Logprobs = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class _CompletionChoice(Struct):
    index: int
    text: str
    logprobs: Logprobs = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class _Chunk(Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    seed: int
    choices: Sequence[Struct]
    usage: Usage = UNSET
    timings: Timings = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class Shape(Protocol):
    """The choices of an endpoint's chunks. index: of the choice among all of the request."""

    kind: str

    def opening(self, index: int, ask: Ask, entries: PromptEntries) -> Struct | None:
        """entries: logprobs of the prompt's tokens, if they are asked for."""
        ...

    def content(self, index: int, chunk: StreamChunk, token_ids: list[int] | UnsetType) -> Sequence[Struct]: ...

    def finish(self, index: int, reason: str) -> Struct: ...


class ChatShape:
    kind = "chat.completion.chunk"

    def __init__(self, body: Body, tokenizer: Tokenizer) -> None:
        self._num_top = body.params.logprobs or 0
        self._tokenizer = tokenizer

    def opening(self, index: int, ask: Ask, entries: PromptEntries) -> Struct:
        return _ChatChoice(index, _Delta("assistant", ""))

    def content(self, index: int, chunk: StreamChunk, token_ids: list[int] | UnsetType) -> Sequence[Struct]:
        logprobs = None
        if chunk.logprobs:
            logprobs = chat_logprobs(chunk.token_ids, chunk.logprobs, self._num_top, self._tokenizer)
        if chunk.parts is None:
            return [_ChatChoice(index, _Delta(UNSET, chunk.text), logprobs, None, token_ids)]
        first, *others = map(_part_delta, chunk.parts) if chunk.parts else [_Delta()]
        return [
            _ChatChoice(index, first, logprobs, None, token_ids), *(_ChatChoice(index, delta) for delta in others)
        ]  # fmt: skip

    def finish(self, index: int, reason: str) -> Struct:
        return _ChatChoice(index, _Delta(), None, reason)


def _part_delta(part: MessagePart) -> _Delta:
    if part.kind == "call":
        return _Delta(tool_calls=[_Call(part.call, part.call_id, "function", _Function(part.text))])
    if part.kind == "arguments":
        return _Delta(tool_calls=[_Call(part.call, function=_Function(arguments=part.text))])
    return _Delta(reasoning_content=part.text) if part.kind == "reasoning" else _Delta(content=part.text)


class CompletionShape:
    kind = "text_completion"

    def __init__(self, body: Body, tokenizer: Tokenizer) -> None:
        self._body = body
        self._shows_prompt_logprobs = body.prompt_logprobs
        self._logprobs_too = body.params.logprobs is not None
        self._num_top = body.params.logprobs or 0
        self._tokenizer = tokenizer
        self._offsets: dict[int, TextOffsets] = {}  # of each choice's tokens
        self._of_prompt: tuple[Ask, PromptLogprobs, Logprobs] | None = None  # what all choices of the latest one begin with

    def opening(self, index: int, ask: Ask, entries: PromptEntries) -> Struct | None:
        ids = ask.requests[0].prompt_token_ids
        if self._of_prompt is None or self._of_prompt[0] is not ask:
            shown = vllm_logprobs(entries) if self._shows_prompt_logprobs else UNSET
            self._of_prompt = ask, shown, echoed_logprobs(ask, ids, entries, self._body, self._tokenizer)
        _, shown, echoed = self._of_prompt
        prefix = prompt_text(ask, ids, self._tokenizer) if self._body.echo else ""
        if self._logprobs_too:
            self._offsets[index] = output_offsets(ids, self._body, self._tokenizer, len(prefix))
        if not self._body.echo:
            return None if shown is UNSET else _CompletionChoice(index, "", prompt_logprobs=shown)
        return _CompletionChoice(index, prefix, echoed, prompt_logprobs=shown)

    def content(self, index: int, chunk: StreamChunk, token_ids: list[int] | UnsetType) -> Sequence[Struct]:
        logprobs = None
        if chunk.logprobs:
            offsets = self._offsets[index].push(chunk.token_ids)
            logprobs = completion_logprobs(chunk.token_ids, chunk.logprobs, self._num_top, self._tokenizer, offsets)
        return [_CompletionChoice(index, chunk.text, logprobs, None, token_ids)]

    def finish(self, index: int, reason: str) -> Struct:
        return _CompletionChoice(index, "", None, reason)


class ChunkEncoder:
    """The events of one request's stream, in order: ``opening``, ``encode`` for all that arrives, ``end``.

    Usage in every chunk is that of the request so far, all prompts and choices together.
    """

    def __init__(self, head: Head, shape: Shape, body: Body, asks: Sequence[Ask]) -> None:
        self._head = head
        self._shape = shape
        self._body = body
        self._asks = asks
        self._first_index = [0, *accumulate(len(ask.requests) for ask in asks)]
        self._seeds = [ask.requests[0].seed for ask in asks]
        self._outputs: list[RequestOutput | None] = [None] * len(asks)
        self._prompt_tokens = sum(len(ask.requests[0].prompt_token_ids) for ask in asks)
        self._completion_tokens = 0
        self._unopened: set[int] = set()

    @property
    def opens_prompts(self) -> bool:
        """Whether the next ``encode`` may have the logprobs of whole prompts."""
        return bool(self._unopened)

    def opening(self) -> bytes:
        """Of all choices, but where logprobs of the prompt are to come: theirs come with the first content."""
        events = bytearray()
        for number, ask in enumerate(self._asks):
            indices = range(self._first_index[number], self._first_index[number + 1])
            if ask.requests[0].params.prompt_logprobs is not None:
                self._unopened.update(indices)
                continue
            for index in indices:
                self._open(events, number, index, None)
        return bytes(events)

    def _open(self, events: bytearray, number: int, index: int, entries: PromptEntries) -> None:
        choice = self._shape.opening(index, self._asks[number], entries)
        if choice is None:
            return
        of_chat = self._body.chat is not None and self._body.prompt_logprobs and index == 0
        self._write(events, self._seeds[number], choice, of_prompt=vllm_logprobs(entries) if of_chat else UNSET)

    def encode(self, arrived: Sequence[tuple[int, StreamChunk]]) -> bytes:
        """arrived: (index of the ask, chunk)."""
        events = bytearray()
        returns_ids = self._body.return_token_ids
        for number, chunk in arrived:
            index = self._first_index[number] + chunk.index
            seed = self._seeds[number]
            if index in self._unopened:
                self._unopened.remove(index)
                self._open(events, number, index, chunk.prompt_logprobs)
            if chunk.finish_reason is None:
                self._completion_tokens += len(chunk.token_ids)
                says = chunk.text if chunk.parts is None else chunk.parts
                if not (says or chunk.logprobs or returns_ids):  # a token without a text, such as an end token
                    continue
                for choice in self._shape.content(index, chunk, chunk.token_ids if returns_ids else UNSET):
                    self._write(events, seed, choice)
                continue
            timings: Timings = UNSET
            if chunk.output is not None:
                self._outputs[number] = chunk.output
                timings = timings_of(chunk.output)
            self._write(events, seed, self._shape.finish(index, chunk.finish_reason), timings)
        return bytes(events)

    def end(self) -> bytes:
        if not self._body.include_usage:
            return _DONE
        outputs = [output for output in self._outputs if output is not None]
        head = self._head
        total = usage_of(outputs, head, self._body)
        chunk = _Chunk(
            head.id, self._shape.kind, head.created_s, head.model, head.fingerprint, self._seeds[0], (), total
        )
        return b"data: " + _encoder.encode(chunk) + b"\n\n" + _DONE

    def _write(
        self, events: bytearray, seed: int, choice: Struct, timings: Timings = UNSET, of_prompt: PromptLogprobs = UNSET
    ) -> None:
        so_far: Usage = UNSET
        if self._body.include_usage:
            so_far = None
            if self._body.continuous_usage:
                so_far = usage(self._prompt_tokens, self._completion_tokens)
        head = self._head
        chunk = _Chunk(
            head.id, self._shape.kind, head.created_s, head.model, head.fingerprint, seed, (choice,), so_far, timings,
            of_prompt,
        )  # fmt: skip
        events += b"data: "
        _encoder.encode_into(chunk, events, len(events))
        events += b"\n\n"


def error_end(error: bytes) -> bytes:
    """How a stream ends that cannot go on. error: an error body, encoded."""
    return b"data: " + error + b"\n\n" + _DONE
