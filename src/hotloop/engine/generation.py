"""Generation: the answer to one prompt, put together from token deltas on the client's side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.engine.inputs import Ask
from hotloop.errors import DeadlineError, EngineDeadError, HotloopError, InvalidRequestError, ShutdownError
from hotloop.request import (
    AssistantMessage,
    CompletionOutput,
    ErrorKind,
    FinishReason,
    Logprob,
    MessagePart,
    Request,
    RequestId,
    RequestOutput,
    Timeline,
    TokenDelta,
    TokenLogprobs,
)
from hotloop.text.message_parser import MessageParser, call_ids, merged_parts
from hotloop.text.output_processor import OutputProcessor, TextDelta
from hotloop.text.thinking import ReasoningCounter
from hotloop.text.tokenizer import Tokenizer

TimingsOf = Callable[[Timeline, int], dict[str, float | int]]  # of a timeline and its number of tokens


_ERRORS: Mapping[ErrorKind, type[HotloopError]] = {
    "internal": HotloopError, "invalid": InvalidRequestError, "deadline": DeadlineError, "engine_dead": EngineDeadError,
    "shutdown": ShutdownError,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one step added to choice ``index`` of an answer. A choice's last chunk adds nothing: it carries finish_reason,
    and the last of all the whole answer. parts: of a chat whose answers may think or call tools, what became certain of the
    message with this text; None where the text is the content. logprobs: of token_ids, if asked for. emitted_s:
    time.perf_counter of the step that made the text certain, 0 where there is none. prompt_logprobs: if asked for, with the
    first chunk of each choice; see RequestOutput."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    output: RequestOutput | None
    index: int = 0
    logprobs: list[dict[int, Logprob]] | None = None
    emitted_s: float = 0.0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    parts: list[MessagePart] | None = None


def merged(chunks: Sequence[StreamChunk]) -> StreamChunk:
    """Successive chunks of a choice as one; if there are several, none carries a finish_reason."""
    if len(chunks) == 1:
        return chunks[0]
    logprobs: list[dict[int, Logprob]] | None = None
    if all(chunk.logprobs is not None for chunk in chunks):
        logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    parts = None if chunks[0].parts is None else merged_parts([part for chunk in chunks for part in chunk.parts or ()])
    return StreamChunk(
        "".join(chunk.text for chunk in chunks), [i for chunk in chunks for i in chunk.token_ids], None, None,
        chunks[0].index, logprobs, chunks[-1].emitted_s, chunks[0].prompt_logprobs, parts,
    )  # fmt: skip


class GenerationError(HotloopError):
    """Some of several prompts ended with an error. errors: by index of the prompt. outputs: of all prompts, None for those."""

    def __init__(self, errors: Mapping[int, HotloopError], outputs: Sequence[RequestOutput | None]) -> None:
        index, first = min(errors.items())
        super().__init__(f"{len(errors)} of {len(outputs)} prompts failed; prompt {index}: {first}")
        self.errors = dict(errors)
        self.outputs = list(outputs)


def as_hotloop_error(error: Exception) -> HotloopError:
    """What the reader of one answer gets for an exception that came up in it."""
    return error if isinstance(error, HotloopError) else HotloopError(f"{type(error).__name__}: {error}")


@dataclass(slots=True, eq=False)
class _Choice:
    """logprobs: of all tokens drawn here; the processor decides which belong to the answer. parser, counter: of a message that
    may have reasoning or tool calls. has_begun: a chunk of it is out."""

    request: Request
    processor: OutputProcessor
    output: CompletionOutput
    num_resumed: int
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_drawn: int = 0
    parser: MessageParser | None = None
    counter: ReasoningCounter | None = None
    has_begun: bool = False


class Generation:
    """One prompt's choices on their way. ``push`` every delta of its requests; ``output`` grows with them.

    A resumed request's earlier tokens are in ``output`` but in no chunk, and they have no logprobs.
    """

    def __init__(self, ask: Ask, tokenizer: Tokenizer, timings_of: TimingsOf) -> None:
        self.requests = ask.requests
        self._message = ask.message
        self._tokenizer = tokenizer
        self._timings_of = timings_of
        self._choices = {request.request_id: self._choice(request) for request in ask.requests}
        self._running = set(self._choices)
        self._excess: list[RequestId] = []
        first = ask.requests[0]
        outputs = [choice.output for choice in self._choices.values()]
        self.output = RequestOutput(
            RequestId(ask.name), ask.text, list(first.prompt_token_ids), outputs, False, first.seed,
            num_truncated_tokens=ask.num_truncated_tokens,
        )  # fmt: skip
        if first.params.prompt_logprobs is not None and not first.output_token_ids:
            self.output.prompt_logprobs = [None]

    @property
    def is_finished(self) -> bool:
        return not self._running

    def take_excess(self) -> list[RequestId]:
        """Requests of which nothing more is needed although the engine does not know: a stop string was found."""
        excess, self._excess = self._excess, []
        return excess

    def push(self, delta: TokenDelta) -> list[StreamChunk]:
        """Take one delta; returns what became certain. Deltas after a choice's end are ignored.

        Raises: HotloopError if the request ended with an error.
        """
        if delta.request_id not in self._running:
            return []
        if delta.error is not None:
            raise _ERRORS[delta.error_kind](delta.error)
        choice = self._choices[delta.request_id]
        choice.logprobs += delta.logprobs
        if delta.prompt_logprobs and self.output.prompt_logprobs is not None:
            self.output.prompt_logprobs += map(self._logprob_entry, delta.prompt_logprobs)
        choice.num_drawn += len(delta.token_ids)
        if choice.counter is not None:
            choice.counter.push(delta.token_ids)
        emitted_s = delta.timeline.last_token_s if delta.timeline is not None else 0.0
        is_stop_token = delta.finish_reason == "stop" and delta.token_ids[-1] in choice.request.stop_token_ids
        new = choice.processor.push(delta.token_ids, ends_with_stop_token=is_stop_token)
        chunks = self._emit(choice, new, emitted_s)
        if new.finish_reason is None and delta.finish_reason is not None:
            if is_stop_token and delta.token_ids[-1] not in self._tokenizer.eos_token_ids:
                choice.output.stop_reason = delta.token_ids[-1]
            chunks += self._emit(choice, choice.processor.finish(delta.finish_reason), emitted_s)
        if choice.output.finish_reason is not None:
            self._running.discard(delta.request_id)
            if delta.finish_reason is None:
                self._excess.append(delta.request_id)
            chunks.append(self._end(choice, delta.timeline))
        return chunks

    def _choice(self, request: Request) -> _Choice:
        params = request.params
        processor = OutputProcessor(
            self._tokenizer, stop=params.stop_strings, include_stop_str=params.include_stop_str_in_output,
            min_tokens=params.min_tokens, skip_special_tokens=params.skip_special_tokens,
            visible_ids=() if self._message is None else self._message.visible_ids,
            prompt_ids=request.prompt_token_ids,
        )  # fmt: skip
        output = CompletionOutput(request.choice, "", [], [] if params.logprobs is not None else None, None)
        resumed = request.output_token_ids
        choice = _Choice(request, processor, output, len(resumed))
        if self._message is not None:
            output.message = AssistantMessage()
            ids = call_ids(request.prompt_token_ids, request.seed, request.choice)
            choice.parser = MessageParser(self._message, ids)
            if self._message.thinking is not None:
                choice.counter = ReasoningCounter(self._message.thinking, processor.shown_bytes)
        if resumed:
            past = processor.push(resumed)
            output.text, output.token_ids = past.text, list(past.token_ids)
        return choice

    def _emit(self, choice: _Choice, new: TextDelta, emitted_s: float) -> list[StreamChunk]:
        """Append what became certain to the answer, and hand it out unless there is nothing."""
        output = choice.output
        logprobs: list[dict[int, Logprob]] | None = None
        if output.logprobs is not None:
            begin = len(output.token_ids) - choice.num_resumed
            end = begin + len(new.token_ids)
            logprobs = [self._logprob_entry(entry) for entry in choice.logprobs[max(0, begin) : max(0, end)]]
            output.logprobs += logprobs
        output.text += new.text
        output.token_ids += new.token_ids
        if new.stop is not None:
            output.stop_reason = new.stop
        if new.finish_reason is not None:
            output.finish_reason = "stop" if new.finish_reason == "stop" else "length"
        parts = self._parts(choice, new)
        if not (new.text or new.token_ids or parts):
            return []
        return [self._chunk(choice, new.text, list(new.token_ids), logprobs=logprobs, emitted_s=emitted_s, parts=parts)]

    def _parts(self, choice: _Choice, new: TextDelta) -> list[MessagePart] | None:
        """What of the message became certain with this text, appended to it; and what kind of an end it has come to."""
        output, parser, message = choice.output, choice.parser, choice.output.message
        if parser is None or message is None:
            return None
        parts = parser.feed(new.text)
        if new.finish_reason is not None:
            parts = merged_parts([*parts, *parser.finish()])
            if output.finish_reason == "stop" and parser.has_calls:
                output.finish_reason = "tool_calls"
        message.add(parts)
        if choice.counter is not None:
            message.num_reasoning_tokens = choice.counter.num_within(len(output.token_ids))
        return parts

    def _chunk(self, choice: _Choice, text: str, token_ids: list[int], **values: Any) -> StreamChunk:
        if not choice.has_begun:
            choice.has_begun = True
            values["prompt_logprobs"] = self.output.prompt_logprobs
        return StreamChunk(text, token_ids, **{"finish_reason": None, "output": None, **values}, index=choice.output.index)

    def _end(self, choice: _Choice, timeline: Timeline | None) -> StreamChunk:
        if choice.request is self.requests[0] and timeline is not None:
            self.output.timings = self._timings_of(timeline, choice.num_drawn)
            self.output.num_cached_tokens = timeline.num_prefix_hit_tokens
        self.output.finished = not self._running
        whole = self.output if self.output.finished else None
        return self._chunk(choice, "", [], finish_reason=choice.output.finish_reason, output=whole)

    def _logprob_entry(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """vLLM's shape: token id -> Logprob, the drawn token first."""

        def text(token_id: int) -> str:
            return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

        result = {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))}
        for rank, (token_id, logprob) in enumerate(entry.top, start=1):
            result.setdefault(token_id, Logprob(logprob, rank, text(token_id)))
        return result
