"""AsyncLLM: a model in this process for asyncio programs. One background thread runs the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from hotloop.config import EngineConfig
from hotloop.engine.chats import Chat, Message
from hotloop.engine.client import EngineClient, EngineInfo
from hotloop.engine.generation import Generation, StreamChunk, merged
from hotloop.engine.inputs import Ask, InputProcessor, Prompt
from hotloop.engine.loading import ConnectedEngine, for_readers, load_engine
from hotloop.engine.resume import Resume
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import ErrorKind, RequestId, RequestOutput, Timeline, TokenDelta
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.timings import timings
from hotloop.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_LONG_TEXT = 2000  # characters: longer prompts are tokenized off the event loop
_MANY_ENTRIES = 100  # of a prompt's logprobs, that come all at once: more are put into words off the event loop


def _takes_long(prompt: Prompt | Resume, params: SamplingParams | None) -> bool:
    """Whether making requests of it would hold up the event loop: what is compiled, or looked for in all tokens."""
    params = prompt.params if isinstance(prompt, Resume) else params
    if isinstance(params, SamplingParams) and (params.structured_outputs is not None or params.dry_multiplier):
        return True
    return isinstance(prompt, Chat) or (isinstance(prompt, str) and len(prompt) > _LONG_TEXT)


class AsyncLLM:
    """A loaded model, as `LLM`, for any number of coroutines at once. Loading blocks; do it before the loop has work.

    All that runs runs together. A generator that is closed, or whose task is cancelled, ends its request: it leaves the
    engine before the next step. Idle costs no CPU. ``close`` (or ``async with``) ends the thread.
    """

    def __init__(self, model: str | Path, **config: Any) -> None:
        self._connect(load_engine(model, for_readers(config)))

    @classmethod
    def over(cls, engine: ConnectedEngine) -> AsyncLLM:
        """On an engine that runs already; closing the AsyncLLM closes it."""
        llm = cls.__new__(cls)
        llm._connect(engine)
        return llm

    def _connect(self, engine: ConnectedEngine) -> None:
        self.path = engine.path
        self._inputs = engine.inputs
        self._pump = DeltaPump(engine.client)
        self._ceiling = engine.ceiling_bytes_per_s
        self._close = weakref.finalize(self, self._pump.close)

    @property
    def config(self) -> EngineConfig:
        """With every value that was left open resolved."""
        return self.info.config

    @property
    def info(self) -> EngineInfo:
        return self._pump.client.info

    @property
    def inputs(self) -> InputProcessor:
        return self._inputs

    @property
    def tokenizer(self) -> Tokenizer:
        return self._inputs.tokenizer

    @property
    def num_open(self) -> int:
        """Requests (choices) that somebody still reads."""
        return self._pump.num_open

    async def generate(
        self,
        prompt: Prompt | Resume,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str = "",
        parse_special: bool = False,
    ) -> AsyncGenerator[StreamChunk, None]:
        """Complete one prompt (or go on with a resumed request) step by step.

        Raises: InvalidRequestError, CapacityError before anything runs; HotloopError if the request ends with an error.
        """
        options: dict[str, Any] = {
            "request_id": request_id, "priority": priority, "timeout_s": timeout_s, "cache_salt": cache_salt
        }  # fmt: skip
        if isinstance(prompt, Resume):
            if sampling_params is not None:
                raise InvalidRequestError("a Resume has its sampling parameters with it; leave sampling_params out")
            make = partial(self._inputs.resume, prompt, **options)
        else:
            make = partial(self._inputs.ask, prompt, sampling_params, parse_special=parse_special, **options)
        ask = await asyncio.to_thread(make) if _takes_long(prompt, sampling_params) else make()
        parts = self.stream([ask])
        try:
            async for part in parts:
                for _, chunk in part:
                    yield chunk
        finally:
            await parts.aclose()

    def check(self, asks: Sequence[Ask]) -> None:
        """Raises: InvalidRequestError, CapacityError if the engine would refuse one of them."""
        for ask in asks:
            self._pump.client.check(ask.requests[0])

    async def stream(self, asks: Sequence[Ask]) -> AsyncGenerator[list[tuple[int, StreamChunk]], None]:
        """Run prompts that `InputProcessor.ask` made. Each item is all that arrived since the last: (index of the ask, chunk),
        with what was added to one choice merged into one chunk.

        Raises: as ``generate``; one ask's error ends all of them.
        """
        generations = {
            request.request_id: (index, generation)
            for index, ask in enumerate(asks)
            for generation in (Generation(ask, self.tokenizer, self._timings),)
            for request in ask.requests
        }
        num_unfinished = len(asks)
        stream = self._pump.open(asks)
        try:
            while num_unfinished:
                part: list[tuple[int, list[StreamChunk]]] = []
                content_of: dict[RequestId, list[StreamChunk]] = {}  # what in ``part`` a choice's content goes to
                failure: HotloopError | None = None
                for delta in await stream.next():
                    index, generation = generations[delta.request_id]
                    try:
                        if len(delta.prompt_logprobs) > _MANY_ENTRIES:
                            chunks = await asyncio.to_thread(generation.push, delta)
                        else:
                            chunks = generation.push(delta)
                    except HotloopError as error:
                        failure = error
                        break
                    for chunk in chunks:
                        num_unfinished -= chunk.output is not None
                        if chunk.finish_reason is None and delta.request_id in content_of:
                            content_of[delta.request_id].append(chunk)
                        else:
                            content_of[delta.request_id] = [chunk]
                            part.append((index, content_of[delta.request_id]))
                    excess = generation.take_excess()
                    if excess:
                        self._pump.close_requests(excess)
                if part:
                    yield [(index, merged(chunks)) for index, chunks in part]
                if failure is not None:
                    raise failure
        finally:
            for ask in asks:
                self._pump.close_ask(ask)

    async def answer(
        self, prompt: Prompt | Resume, sampling_params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """The whole answer; parameters as ``generate``."""
        async for chunk in self.generate(prompt, sampling_params, **options):
            if chunk.output is not None:
                return chunk.output
        raise AssertionError("a stream ends with its output")

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[StreamChunk, None]:
        """Answer one conversation step by step; parameters as `LLM.chat`, options as ``generate``."""
        chat = Chat(messages, tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        stream = self.generate(chat, sampling_params, **options)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()

    @property
    def failure(self) -> str | None:
        """Why no request is served any more, if that is so."""
        return self._pump.failure

    def shut_down(self, message: str) -> None:
        """Every request ends with a ShutdownError, and no new one starts; ``close`` comes next."""
        self._pump.fail(message, "shutdown")

    def close(self) -> None:
        """End all requests and the thread. Harmless when repeated."""
        self._close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timings(self, timeline: Timeline, num_tokens: int) -> dict[str, float | int]:
        return timings(timeline, num_tokens, self.info.weight_bytes_per_step, self._ceiling)


class DeltaStream:
    """The deltas of one prompt's requests on their way to a coroutine. Only the event loop's thread touches it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: list[TokenDelta] = []
        self._arrived = asyncio.Event()

    def put(self, deltas: Sequence[TokenDelta]) -> None:
        self._ready += deltas
        self._arrived.set()

    async def next(self) -> list[TokenDelta]:
        """All that arrived since the last call; waits for some. A slow reader gets more at a time and loses nothing."""
        await self._arrived.wait()
        self._arrived.clear()
        ready, self._ready = self._ready, []
        return ready


class DeltaPump:
    """A thread that polls an engine and hands its deltas to event loops, one call per loop and step."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._streams: dict[RequestId, DeltaStream] = {}
        self._named: dict[str, RequestId] = {}  # the name of a prompt -> its first request
        self._failure: str | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hotloop-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the engine serves no more, if it does not."""
        return self._failure

    @property
    def _is_forked(self) -> bool:
        """The thread stayed in the parent process, and may have held locks that nobody lets go of here."""
        return os.getpid() != self._pid

    @property
    def num_open(self) -> int:
        """Requests that somebody still reads."""
        return len(self._streams)

    def open(self, asks: Sequence[Ask]) -> DeltaStream:
        """Start the requests of prompts; one stream for all of them. Called in the event loop that reads.

        Raises: as ``EngineClient.check``.
        """
        if self._is_forked:
            raise HotloopError("this process was forked and has no engine thread; make an AsyncLLM of its own in it")
        for ask in asks:
            for request in ask.requests:
                self.client.check(request)
        stream = DeltaStream(asyncio.get_running_loop())
        with self._lock:
            if self._failure is not None:
                raise HotloopError(self._failure)
            for ask in asks:
                if self._named.get(ask.name) in self._streams:
                    raise InvalidRequestError(f"request id {ask.name!r} is in use; choose another")
            for ask in asks:
                self._named[ask.name] = ask.requests[0].request_id
                self._streams |= {request.request_id: stream for request in ask.requests}
        try:
            for ask in asks:
                self.client.add(ask.requests)
        except BaseException:
            for ask in asks:
                self.close_ask(ask)
            raise
        return stream

    def close_ask(self, ask: Ask) -> None:
        """Nobody reads it any more; its name is free."""
        if self._is_forked:
            return
        first = ask.requests[0].request_id
        with self._lock:
            if self._named.get(ask.name) == first:
                del self._named[ask.name]
        self.close_requests([request.request_id for request in ask.requests])

    def close_requests(self, request_ids: Sequence[RequestId]) -> None:
        """Those that have not ended leave the engine before its next step."""
        if self._is_forked:
            return
        with self._lock:
            running = [i for i in request_ids if self._streams.pop(i, None) is not None]
        if running:
            self.client.abort(running)

    def close(self) -> None:
        if self._is_forked:
            return
        self.fail("the engine is closed")
        self._is_closed = True
        self.client.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._deliver(self.client.poll(timeout_s=None))
        except BaseException as error:  # whatever it was, nobody would answer the streams any more
            _log.exception("the engine's thread ended")
            self.fail(f"the engine failed: {type(error).__name__}: {error}")

    def _deliver(self, deltas: Sequence[TokenDelta]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, dict[DeltaStream, list[TokenDelta]]] = {}
        with self._lock:
            for delta in deltas:
                stream = self._streams.get(delta.request_id)
                if stream is None:  # given up while the step ran
                    continue
                by_loop.setdefault(stream.loop, {}).setdefault(stream, []).append(delta)
                if delta.finish_reason is not None or delta.error is not None:
                    del self._streams[delta.request_id]
        for loop, parts in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, parts)
            except RuntimeError:  # the loop is closed: nobody reads these any more
                self.close_requests([delta.request_id for part in parts.values() for delta in part])

    def fail(self, message: str, kind: ErrorKind = "internal") -> None:
        """Every stream ends with an error, and no new one starts."""
        with self._lock:
            self._failure = self._failure or message
            open_ = list(self._streams)
        self._deliver([TokenDelta(request_id, (), (), None, message, None, kind) for request_id in open_])


def _put_all(parts: dict[DeltaStream, list[TokenDelta]]) -> None:
    for stream, deltas in parts.items():
        stream.put(deltas)
