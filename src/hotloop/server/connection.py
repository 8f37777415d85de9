"""Connection: uvicorn's HTTP/1.1 connection with limits on how long and how much a client may keep the server waiting."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


@dataclass(frozen=True, slots=True)
class Limits:
    """header_timeout_s, max_header_bytes: of the head of a request, from the connection's or the last answer's moment on; the
    bytes also of trailers, and of requests sent ahead of the answer to the one before. write_timeout_s: a client that takes
    nothing of what waits for it for so long loses the connection."""

    write_timeout_s: float
    header_timeout_s: float = 10.0
    max_header_bytes: int = 64 * 1024


class Connection(HttpToolsProtocol):
    """What a client leaves unread costs at most the transport's buffer, what it does not send a timer; tokens cost neither."""

    limits: ClassVar[Limits] = Limits(write_timeout_s=60.0)

    @classmethod
    def with_limits(cls, limits: Limits) -> type[Connection]:
        return type("Connection", (cls,), {"limits": limits})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # or the last that ran; uvicorn's ``cycle`` is the last that came
        self._in_head = False
        self._is_head = False  # what was received last, or of trailers
        self._head_bytes = 0
        self._ahead_bytes = 0
        self._untaken_bytes = 0  # when the write timer began

    # ---- the head of a request --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._is_head = True
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("a client sent what is no HTTP request")
            self._refuse(b"400 Bad Request")
            return
        if self._is_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self._refuse(b"431 Request Header Fields Too Large")
        if self.pipeline:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > self.limits.max_header_bytes:
                self.transport.close()
            self.flow.resume_reading()  # else nobody would see that the client leaves
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def _parse(self, data: bytes) -> None:
        """Raises: httptools.HttpParserError."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]

    def _without_offer(self) -> bytes:
        """The head once more, for a new parser, without the offer to upgrade; with it, the body is another protocol's."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError("nothing to connect to")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        headers = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([b"%s %s HTTP/%s\r\n" % (method, self.url, version), *headers, b"\r\n"])

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, which means nothing here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._stop_head_timer()
        self._set_date()
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
            self._ahead_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._is_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_head = False
        super().on_message_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        self._in_head = False
        if not self.transport.is_closing():
            if self._running is None or self._running.response_complete:  # else it would be in the midst of an answer
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _set_date(self) -> None:
        """For the answer. uvicorn does this once a second, requests or not."""
        date = formatdate(time.time(), usegmt=True).encode()
        self.server_state.default_headers = [(b"date", date)]

    # ---- what the client does not read ------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        if self.transport.get_write_buffer_size():
            self._watch_reader()
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def _watch_reader(self) -> None:
        self._stop_write_timer()
        self._untaken_bytes = self._count_untaken_bytes()
        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._write_timer = None
        untaken_bytes = self._count_untaken_bytes()
        if untaken_bytes >= self._untaken_bytes > 0:
            self.transport.abort()
        elif untaken_bytes:
            self._watch_reader()

    def _count_untaken_bytes(self) -> int:
        """In the transport's buffer and the system's, which says that it has room again only when much of it is free."""
        queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
