"""HTTP/1.1 exchanges for asyncio that keep what arrived with the time it arrived, and do nothing else meanwhile.

A client that shares its cores with the server it measures must cost little: the body's pieces are stored as they come, and
read when the exchange is over. Every request has a connection of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from hotloop.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. path: of its API, such as /v1, without a slash at the end."""

    host: str
    port: int
    path: str
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """From http://host:port, with or without /v1. Raises InvalidRequestError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(f"URL is {url!r:.80}; give one such as http://127.0.0.1:8000")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/") or "/v1", is_tls)

    def request(self, method: str, path: str, body: bytes, api_key: str | None) -> bytes:
        """The bytes of a request for a path below the API's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Accept: text/event-stream, application/json",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *([f"Authorization: Bearer {api_key}"] if api_key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Reply:
    """What came back. status: 0 if nothing did. reads: seconds of perf_counter and the piece of the body that arrived
    then. failure: why it ended early, if it did. ended_s: when it was over."""

    status: int = 0
    content_type: str = ""
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    failure: str | None = None
    ended_s: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.reads)


async def exchange(address: Address, request: bytes, timeout_s: float) -> Reply:
    """Send a request on a new connection and wait for the whole answer, at most ``timeout_s``."""
    loop = asyncio.get_running_loop()
    result = Reply()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            tls = ssl.create_default_context() if address.is_tls else None
            transport, connection = await loop.create_connection(
                lambda: _Connection(request, result, loop.create_future()), address.host, address.port, ssl=tls
            )
            await connection.ended
    except TimeoutError:
        result.failure = f"no complete answer within {timeout_s:g} s"
    except OSError as error:
        result.failure = f"cannot connect to {address.host}:{address.port}: {error.strerror or error}"
    finally:
        result.ended_s = time.perf_counter()
        if transport is not None:
            transport.abort()
    return result


class _Connection(asyncio.Protocol):
    """Sends one request; the on_... methods are the parser's."""

    def __init__(self, request: bytes, result: Reply, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._request = request
        self._result = result
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        # Nothing wrong by itself: a body without a length ends so. Whether it is whole, its reader finds out.
        self._end(None if self._result.status else "the server closed the connection without an answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._result.content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        self._result.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._result.reads.append((self._now_s, body))

    def on_message_complete(self) -> None:
        self._end(None)

    def _end(self, failure: str | None) -> None:
        if not self.ended.done():
            self._result.failure = failure
            self.ended.set_result(None)
