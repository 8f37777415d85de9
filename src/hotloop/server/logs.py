"""The server's log on stderr, for people or as JSON lines: one line per request, and nothing of what it said."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotloop.request import RequestOutput
from hotloop.server.log_stream import BackgroundHandler
from hotloop.server.settings import LogFormat

_log = logging.getLogger("hotloop.requests")

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})  # asked all the time; logged at level DEBUG
_MAX_PATH = 200
_GONE = 499  # the status in the log where a client left before there was one


def configure_logging(format: LogFormat) -> None:
    """Everything goes to stderr, if there is one; libraries only from WARNING on."""
    handler = logging.NullHandler() if sys.__stderr__ is None else BackgroundHandler(sys.__stderr__.fileno())
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hotloop").setLevel(logging.INFO)
    logging.getLogger("hotloop.engine").setLevel(logging.WARNING)  # what it runs with, the line of readiness says
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class HumanFormatter(logging.Formatter):
    """Time, level if it is more than INFO, message. Its control characters are escaped: clients may have sent them."""

    def format(self, record: logging.LogRecord) -> str:
        level = f" {record.levelname}" if record.levelno > logging.INFO else ""
        message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.getMessage())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{datetime.fromtimestamp(record.created):%Y-%m-%d %H:%M:%S}{level} {message}{trace}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message or, of a request, its fields; exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        fields: Mapping[str, Any] | None = getattr(record, "fields", None)
        entry |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class RequestLog:
    """ASGI middleware: one line per request when its answer is over. The route adds fields to ``scope["hotloop.log"]``.

    responded: told every status, 499 for none.
    """

    def __init__(self, app: ASGIApp, responded: Callable[[int], None]) -> None:
        self._app = app
        self._responded = responded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.perf_counter()
        status, is_whole = _GONE, False

        async def watched(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                is_whole = True
            await send(message)

        added: dict[str, Any] = {}
        scope["hotloop.log"] = added
        try:
            await self._app(scope, receive, watched)
        finally:
            self._responded(status)
            level = logging.DEBUG if scope["path"] in _QUIET_PATHS else logging.INFO
            if _log.isEnabledFor(level):
                fields = {
                    "method": scope["method"],
                    "path": scope["path"][:_MAX_PATH],
                    "status": status,
                    "duration_s": round(time.perf_counter() - start_s, 6),
                    "key": scope.get("hotloop.key", "-"),
                    "client": (scope.get("client") or ("-",))[0],
                    **({} if is_whole else {"cut": True}),
                    **added,
                }
                _log.log(level, "%s", _line(fields), extra={"fields": fields})


def note_output(fields: dict[str, Any], output: RequestOutput) -> None:
    """One prompt of the request has its answer; several add up. TTFT is the latest of theirs."""
    timings = output.timings or {}
    for name, value in (
        ("prompt_tokens", len(output.prompt_token_ids)),
        ("cached_tokens", output.num_cached_tokens),
        ("completion_tokens", sum(len(choice.token_ids) for choice in output.outputs)),
    ):
        fields[name] = fields.get(name, 0) + value
    if "ttft_s" in timings:
        fields["ttft_s"] = max(fields.get("ttft_s", 0.0), round(timings["ttft_s"], 6))
    fields.setdefault("finish_reasons", []).extend(choice.finish_reason for choice in output.outputs)


def _line(fields: Mapping[str, Any]) -> str:
    """For people: the first few without their names."""
    shown = dict(fields)
    head = f"{shown.pop('method')} {shown.pop('path')} {shown.pop('status')} {shown.pop('duration_s'):.3f} s"
    return " ".join([head, *(f"{name}={value}" for name, value in shown.items())])
