"""JSON bodies of requests: read, decoded and understood without holding up the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import msgspec
from starlette.requests import Request

from hotloop.errors import InvalidRequestError
from hotloop.nesting import MAX_LEVELS, is_too_deep
from hotloop.server.errors import RefusedError
from hotloop.server.event_stream import while_connected

T = TypeVar("T")

_LONG_BODY = 4000  # bytes: longer ones are read and tokenized off the event loop
# What is compiled, or looked for in all tokens of the vocabulary; names of fields may be in escapes.
_SLOW = re.compile(rb"response_format|structured_outputs|\"tools\"|dry_multiplier|\\u00")
_MAX_CONTAINERS = 500_000  # in a body; while Python makes and frees them, it writes no tokens


async def understood(request: Request, threads: Executor, understand: Callable[[object], T]) -> T:
    """What ``understand`` makes of the body's value; it is called in a thread if that may take long.

    Raises: InvalidRequestError; ClientGoneError; RefusedError if the body does not say that it is JSON: what pages of other
    sites can make a browser send does not.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RefusedError(
            f"content-type is {kind!r:.100}; send the header content-type: application/json", 415, "unsupported_media_type"
        )
    raw = await request.body()

    def make() -> T:
        return understand(decode_json(raw))

    if len(raw) <= _LONG_BODY and not _SLOW.search(raw):
        return make()
    return await while_connected(request.receive, asyncio.get_running_loop().run_in_executor(threads, make))


def decode_json(raw: bytes) -> object:
    """Raises: InvalidRequestError for what is no strict JSON in UTF-8, or might be too much of it."""
    num_containers = raw.count(b"[") + raw.count(b"{")
    if num_containers > _MAX_CONTAINERS:
        raise InvalidRequestError(f"the body has more than {_MAX_CONTAINERS} opening brackets, those in texts included")
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON ({error})") from None
    if num_containers > MAX_LEVELS and is_too_deep(value):
        raise InvalidRequestError(f"the body is nested on more than {MAX_LEVELS} levels")
    return value
