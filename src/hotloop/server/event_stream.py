"""EventStream: an ASGI response that writes events as they come, and work that ends when its client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection before its answer was done."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
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
    for ``events`` to turn into an item. The next item is asked for when the connection has taken the one before: a slow
    reader holds up its own events only. When the client goes, or is dropped, the generator is closed.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        # No proxy may collect the events, or keep them.
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGoneError):
            await while_connected(receive, self._write_all(send))

    async def _write_all(self, send: Send) -> None:
        has_begun = False
        async with aclosing(self._events):
            async for data in self._events:
                if not has_begun:
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    has_begun = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
