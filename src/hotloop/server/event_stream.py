"""EventStream: an ASGI response that writes events as they come, and work that ends when its client is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection before its answer was done."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client goes first. receive: of a request whose body was read.

    Raises: ClientGoneError.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Writes each item of ``events`` when there is one; status and headers go out with the first.

    An exception before the first item goes to the caller, which can still answer with a status of its own; later ones are
    for ``events`` to turn into an item. The next item is asked for when the one before has been taken by the connection:
    a slow reader holds up its own events only. The generator is closed when the client goes, or takes nothing for
    write_timeout_s.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str], *, write_timeout_s: float
    ) -> None:
        # No proxy may collect the events, or keep them.
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._write_timeout_s = write_timeout_s
        self._writing_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._write_all(send))
        except ClientGoneError:
            _log.debug("the client of a stream is gone")
        except TimeoutError:
            _log.warning("a client took nothing for %g s and is dropped", self._write_timeout_s)

    async def _write_all(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        has_begun = False
        async with aclosing(self._events), self._write_limit():
            async for data in self._events:
                self._writing_since_s = clock()
                if not has_begun:
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    has_begun = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._writing_since_s = None
            self._writing_since_s = clock()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def _write_limit(self) -> AsyncIterator[None]:
        """Raises TimeoutError in the body if one write takes longer than the limit. It looks now and then: a timer for every
        write would cost more than the writes' own Python code."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            since_s, now_s = self._writing_since_s, loop.time()
            if since_s is not None and now_s - since_s >= self._write_timeout_s:
                limit.reschedule(now_s)
            timer = loop.call_later(self._write_timeout_s / 4, look)

        timer = loop.call_later(self._write_timeout_s / 4, look)
        try:
            async with asyncio.timeout(None) as limit:
                yield
        finally:
            timer.cancel()
