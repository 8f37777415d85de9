"""A scripted OpenAI server for tests of clients: each answer is raw bytes, written piece by piece."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
Script = Callable[[Body], Iterable[bytes]]

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class FakeOpenAI:
    """script: the pieces of the answer to a body; an empty piece closes the connection. seen: bodies in order.
    most_in_flight: requests answered at the same time at most."""

    script: Script
    model: str | None = "fake"
    seen: list[Body] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    most_in_flight: int = 0
    _in_flight: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        self.headers.append(head)
        if head.startswith("GET"):
            models = {"data": [] if self.model is None else [{"id": self.model}]}
            writer.write(whole(models))
        else:
            self.seen.append(json.loads(body))
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            for piece in self.script(self.seen[-1]):
                if not piece:
                    break
                await asyncio.sleep(0.001)  # the pieces arrive apart, and others' requests get their turn
                writer.write(piece)
            self._in_flight -= 1
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Its URL, served by an event loop in a thread of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        running = self.running()
        try:
            yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
            asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def whole(value: object, status: str = "200 OK") -> bytes:
    """An answer in one piece."""
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer encoding; of nothing: the last one."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def num_prompt_tokens(body: Body) -> int:
    """Two for the template and three per word."""
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return 2 + 3 * len(text.split())


def stream(body: Body) -> Iterable[bytes]:
    """A well-behaved streamed answer of max_tokens tokens, one per event."""
    yield _STREAM_HEAD
    is_chat = "messages" in body
    if is_chat:
        yield chunk(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
    for _ in range(body["max_tokens"]):
        yield chunk(event({"choices": [{"delta": {"content": " a"}} if is_chat else {"text": " a"}]}))
    yield chunk(event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "length"}]}))
    if body.get("stream_options", {}).get("include_usage"):
        usage = {"prompt_tokens": num_prompt_tokens(body), "completion_tokens": body["max_tokens"]}
        yield chunk(event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 1}}}))
    yield chunk(event(b"[DONE]")) + chunk(b"")
