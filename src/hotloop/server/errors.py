"""What a client is told of an error: a status and OpenAI's error object, never larger than a few kilobytes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec
from starlette.responses import Response

from hotloop.errors import (
    CapacityError,
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    HotloopError,
    InvalidRequestError,
    OverloadedError,
    ShutdownError,
)
from hotloop.server.responses import error_body

_MAX_MESSAGE = 2000  # characters; some messages quote what the request held

Status = Literal[400, 401, 404, 405, 408, 413, 415, 429, 500, 503]


class RefusedError(HotloopError):
    """A request that is refused with a status of its own. code: for programs."""

    def __init__(self, message: str, status: Status, code: str | None = None) -> None:
        super().__init__(message)
        self.status: Status = status
        self.code = code


class Refusal(NamedTuple):
    """type, code: as in OpenAI's error object."""

    status: int
    type: str
    code: str | None
    message: str
    headers: dict[str, str]

    @property
    def body(self) -> bytes:
        message = self.message if len(self.message) <= _MAX_MESSAGE else self.message[:_MAX_MESSAGE] + "…"
        # Half a surrogate pair that a message quotes would fit in no JSON.
        message = message.encode("utf-8", "replace").decode()
        return msgspec.json.encode(error_body(message, kind=self.type, code=self.code))

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


def refusal(error: Exception) -> Refusal:
    """Whose fault it was, and how to say so."""
    message = str(error)
    if isinstance(error, RefusedError):
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return Refusal(error.status, kind, error.code, message, {})
    if isinstance(error, OverloadedError):
        retry = {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
        return Refusal(429, "rate_limit_error", "overloaded", message, retry)
    if isinstance(error, DeadlineError):
        return Refusal(408, "timeout_error", "deadline_exceeded", message, {})
    if isinstance(error, InvalidRequestError | CapacityError):
        code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
        return Refusal(400, "invalid_request_error", code, message, {})
    if isinstance(error, EngineDeadError):
        return Refusal(500, "server_error", "engine_dead", message, {})
    if isinstance(error, ShutdownError):
        return Refusal(503, "server_error", "shutting_down", message, {})
    if isinstance(error, HotloopError):
        return Refusal(500, "server_error", None, message, {})
    return Refusal(500, "server_error", None, "an internal error; the server's log has it", {})
