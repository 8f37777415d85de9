"""The layers around the application, outermost first: log, keys, drain, limits of bodies."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp

from hotloop.server.auth import Auth
from hotloop.server.lifecycle import DrainGate, Lifecycle
from hotloop.server.limits import BodyLimit
from hotloop.server.logs import RequestLog
from hotloop.server.settings import ServeSettings


def guarded(app: ASGIApp, settings: ServeSettings, lifecycle: Lifecycle, responded: Callable[[int], None]) -> ASGIApp:
    """The application as clients may reach it. responded: told the status of every answer."""
    app = BodyLimit(app, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
    app = DrainGate(app, lifecycle)
    app = Auth(app, settings.api_keys, public_metrics=settings.public_metrics)
    return RequestLog(app, responded)
