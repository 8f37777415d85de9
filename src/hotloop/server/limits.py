"""Bodies of requests: how large, and how long they may take to arrive."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.server.errors import RefusedError, Status, refusal

_LINGER_S = 2.0  # a client that is refused may go on sending so long; closed at once, it might never see why


class _TooLargeError(Exception):
    pass


class _GoneError(Exception):
    """The client left before its body was here."""


class BodyLimit:
    """ASGI middleware: the application sees whole bodies only, none larger than max_bytes or slower than timeout_s."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(scope, receive)
        except _GoneError:
            return
        except _TooLargeError:
            response = _refusal(
                f"the body is larger than the {self._max_bytes} bytes that this server takes", 413, "request_too_large"
            )
            await send({"type": "http.response.start", "status": 413, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": response.body, "more_body": True})
            await _discard(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        except TimeoutError:
            response = _refusal(f"the body did not arrive within {self._timeout_s:g} s", 408, "request_timeout")
            await response(scope, receive, send)
            return

        is_read = False

        async def receive_body() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_body, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body, if it is not announced or found to be too large."""
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length")
        if announced is None and b"transfer-encoding" not in headers:
            return b""
        if announced is not None and int(announced) > self._max_bytes:  # the HTTP parser takes digits only
            raise _TooLargeError
        pieces: list[bytes] = []
        num_bytes = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _GoneError
            pieces.append(message.get("body", b""))
            num_bytes += len(pieces[-1])
            if num_bytes > self._max_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(pieces)


def _refusal(message: str, status: Status, code: str) -> Response:
    """An answer after which the connection is closed."""
    return refusal(RefusedError(message, status, code))._replace(headers={"connection": "close"}).response()


async def _discard(receive: Receive) -> None:
    """Read on, keeping nothing, until the body ends, the client leaves, or for a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body", False):
                pass
