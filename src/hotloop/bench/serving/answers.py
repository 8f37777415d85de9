"""What an exchange with an OpenAI endpoint says about one answer: when its events arrived, and how many tokens it had."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from hotloop.bench.serving.connection import Reply

_SHOWN = 200  # characters of a server's error


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its client saw it; moments are seconds of perf_counter.

    events_s: when each event with text arrived. ended_s: when the last event with text or a finish reason did; of a failed
    request, when it failed. tokens: drawn, as the server's usage says, else one per event with text. prompt_tokens,
    cached_tokens: None if the server does not say. timings: what the server itself says about its time. error: why there is
    no complete answer.
    """

    sent_s: float
    ended_s: float
    events_s: tuple[float, ...] = ()
    text: str = ""
    tokens: int = 0
    has_usage: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    is_streamed: bool = False
    timings: dict[str, Any] | None = None
    error: str | None = None
    status: int = 0

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float:
        return (self.events_s[0] if self.events_s else self.ended_s) - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """None if there was no second token, or no stream to see it in."""
        return (self.e2e_s - self.ttft_s) / (self.tokens - 1) if self.is_streamed and self.tokens > 1 else None

    @property
    def itl_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.events_s)]


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        if self.text:
            return self.text
        said = self.delta or self.message
        return (said.content or said.reasoning_content or said.reasoning or "") if said else ""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


def read_answer(sent_s: float, reply: Reply) -> Answer:
    """The answer in an exchange that is over, streamed or not."""
    if reply.failure is None and reply.status != 200:
        error = f"HTTP {reply.status}: {_refusal(reply.body)}"
        return Answer(sent_s, reply.ended_s, error=error, status=reply.status)
    body_s = reply.reads[-1][0] if reply.reads else reply.ended_s
    is_streamed = reply.content_type == "text/event-stream"
    if is_streamed:
        events = list(sse_events(reply.reads))
        is_done = bool(events) and events[-1][1] == b"[DONE]"
        events = events[:-1] if is_done else events
    else:
        events = [(body_s, reply.body)]
        is_done = False
    reader = _Reader()
    failure = reply.failure
    try:
        for time_s, data in events:
            reader.add(time_s, _DECODER.decode(data))
    except msgspec.MsgspecError as invalid:
        failure = failure or f"not an OpenAI event: {invalid}"
    failure = failure or reader.error
    if failure is None and not (reader.has_finished or is_done):
        failure = "the answer ended without a finish reason"
    counted = reader.completion_tokens
    return Answer(
        sent_s,
        reply.ended_s if failure is not None else reader.ended_s or body_s,
        tuple(reader.events_s),
        "".join(reader.texts),
        tokens=len(reader.events_s) if counted is None else counted,
        has_usage=counted is not None,
        prompt_tokens=reader.prompt_tokens,
        cached_tokens=reader.cached_tokens,
        is_streamed=is_streamed,
        timings=reader.timings,
        error=failure,
        status=reply.status,
    )


def sse_events(reads: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, with the time of the read that completed it."""
    ends = list(accumulate(len(piece) for _, piece in reads))
    data: list[bytes] = []
    offset = 0
    for line in b"".join(piece for _, piece in reads).splitlines(keepends=True):
        offset += len(line)
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            data.append(text[5:].removeprefix(b" "))
        elif not text and data:
            yield reads[bisect_left(ends, offset)][0], b"\n".join(data)
            data = []
    if data:  # the blank line after the last event is missing
        yield reads[-1][0], b"\n".join(data)


class _Reader:
    """Adds up the events of one answer."""

    def __init__(self) -> None:
        self.events_s: list[float] = []
        self.texts: list[str] = []
        self.ended_s = 0.0
        self.has_finished = False
        self.completion_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.timings: dict[str, Any] | None = None
        self.error: str | None = None

    def add(self, time_s: float, event: _Event) -> None:
        if event.error is not None and self.error is None:
            self.error = _message(event.error)
        text = "".join(choice.content for choice in event.choices)
        if text:
            self.events_s.append(time_s)
            self.texts.append(text)
        is_finish = any(choice.finish_reason for choice in event.choices)
        if text or is_finish:
            self.ended_s = time_s
        self.has_finished |= is_finish
        self.timings = event.timings or self.timings
        if event.usage is not None:
            self.completion_tokens = event.usage.completion_tokens
            self.prompt_tokens = event.usage.prompt_tokens
            details = event.usage.prompt_tokens_details
            self.cached_tokens = details.cached_tokens if details else None


def _refusal(body: bytes) -> str:
    """What the body of an error status says."""
    try:
        return _message(msgspec.json.decode(body)["error"])
    except (msgspec.MsgspecError, TypeError, KeyError):
        return _message(body.decode("utf-8", "replace"))


def _message(error: object) -> str:
    """The beginning of the sentence in an ``error`` member, in one line."""
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:_SHOWN] or "no message"
