"""Answers of the layers around the application: an error in OpenAI's shape, with nothing of the request in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.types import Send

from hotloop.server.responses import error_body

Header = tuple[bytes, bytes]

CLOSE: Header = (b"connection", b"close")


async def refuse(
    send: Send,
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    headers: Sequence[Header] = (),
    ends: bool = True,
) -> None:
    """Answer with an error. ends: the answer is over; else the caller sends an empty last piece."""
    body = json.dumps(error_body(message, kind=kind, code=code)).encode()
    length = str(len(body)).encode()
    all_headers = [(b"content-type", b"application/json"), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body, "more_body": not ends})
