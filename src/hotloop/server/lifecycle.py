"""The server's life: it is ready, drains after the first signal, and ends; at once after a second one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from hotloop.server.connection import Connection, Limits, affordable_connections
from hotloop.server.errors import RefusedError, refusal
from hotloop.server.settings import ServeSettings

_log = logging.getLogger(__name__)

_CUT_S = 5.0  # for answers to end with an error after the drain's limit, and to be written
_CLOSE_S = 1  # for connections to close


class Lifecycle:
    """Whether the server drains, and how many requests it still answers. One event loop's."""

    def __init__(self, drain_timeout_s: float) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._drain_ends_s = math.inf
        self._num_answering = 0
        self._changed = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        return self._drain_ends_s < math.inf

    @property
    def num_answering(self) -> int:
        """HTTP requests that have no whole answer yet."""
        return self._num_answering

    @property
    def drain_left_s(self) -> float:
        return max(0.0, self._drain_ends_s - time.perf_counter())

    def drain(self) -> None:
        """From now on new work is refused."""
        self._drain_ends_s = time.perf_counter() + self._drain_timeout_s
        self._changed.set()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        self._num_answering += 1
        try:
            yield
        finally:
            self._num_answering -= 1
            self._changed.set()

    async def until_draining(self) -> None:
        await self._until(lambda: self.is_draining)

    async def until_idle(self) -> None:
        await self._until(lambda: not self._num_answering)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class DrainGate:
    """ASGI middleware: counts requests, and while the server drains refuses new ones but questions about the server."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._lifecycle.answering():
            if self._lifecycle.is_draining and scope["method"] not in ("GET", "HEAD"):
                headers = {
                    "retry-after": str(math.ceil(self._lifecycle.drain_left_s) + 1), "connection": "close",
                }  # fmt: skip
                error = RefusedError("the server is about to end and takes no new requests", 503, "draining")
                await refusal(error)._replace(headers=headers).response()(scope, receive, send)
            else:
                await self._app(scope, receive, send)


def serve(
    app: ASGIApp,
    listener: socket.socket,
    settings: ServeSettings,
    lifecycle: Lifecycle,
    *,
    on_ready: Callable[[], None],
    on_cut: Callable[[str], None],
) -> None:
    """Answer requests until a signal, then drain. on_cut: called with a reason when the drain took too long; it ends every
    answer with an error."""
    _Server(app, settings, lifecycle, on_ready, on_cut).run([listener])


class _Server(uvicorn.Server):
    """uvicorn's, whose main loop only waits, and for whom a signal is the beginning of the end."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        lifecycle: Lifecycle,
        on_ready: Callable[[], None],
        on_cut: Callable[[str], None],
    ) -> None:
        limits = Limits(settings.write_timeout_s, max_connections=affordable_connections())
        super().__init__(
            uvicorn.Config(
                app, http=Connection.with_limits(limits), ws="none", lifespan="off", log_config=None, access_log=False,
                proxy_headers=False, server_header=False, timeout_graceful_shutdown=_CLOSE_S,
            )
        )  # fmt: skip
        self._lifecycle = lifecycle
        self._on_ready = on_ready
        self._on_cut = on_cut

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def main_loop(self) -> None:
        lifecycle = self._lifecycle
        await lifecycle.until_draining()
        _log.info("draining; requests to answer: %d, within %.1f s", lifecycle.num_answering, lifecycle.drain_left_s)
        try:
            async with asyncio.timeout(lifecycle.drain_left_s):
                await lifecycle.until_idle()
        except TimeoutError:
            _log.warning("%d requests took too long to end and end with an error", lifecycle.num_answering)
            self._on_cut("the server is shutting down")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CUT_S):
                    await lifecycle.until_idle()
        _log.info("drained")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._lifecycle.is_draining:
            _log.warning("a second signal: ending at once")
            logging.shutdown()
            os._exit(128 + number)  # the engine's process ends with this one
        self._lifecycle.drain()
