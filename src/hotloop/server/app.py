"""create_app: the FastAPI application around a Service."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hotloop.errors import HotloopError
from hotloop.server.errors import RefusedError, refusal
from hotloop.server.event_stream import ClientGoneError
from hotloop.server.openapi import document
from hotloop.server.routes import add_routes
from hotloop.server.service import Service

# OpenAI's routes that clients may try; said by name, so that nobody looks for a typing error.
_NOT_OFFERED = (
    "/v1/assistants", "/v1/audio", "/v1/batches", "/v1/edits", "/v1/embeddings", "/v1/files", "/v1/fine_tuning", "/v1/images",
    "/v1/moderations", "/v1/realtime", "/v1/rerank", "/v1/responses", "/v1/score", "/v1/threads", "/v1/vector_stores",
)  # fmt: skip


def create_app(service: Service) -> FastAPI:
    """Without keys and limits: see edge.guarded."""
    app = FastAPI(openapi_url="/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_routes(app, service)
    app.openapi = lambda: document(service)  # type: ignore[method-assign]

    async def refused(request: Request, error: Exception) -> Response:
        told, log = refusal(error), request.scope.get("hotloop.log", {})
        log["error"] = told.code or told.type  # its message may quote the prompt
        response = told.response()
        if "id" in log:
            response.headers["x-request-id"] = log["id"]
        return response

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it; the log shows it

    async def no_route(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        if path.startswith(_NOT_OFFERED):
            message = f"{path:.200} is not offered by this server; see /openapi.json for what is"
        else:
            message = f"there is no {path:.200}; see /openapi.json for what there is"
        return refusal(RefusedError(message, 404, "not_found")).response()

    async def no_method(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        message = f"{request.scope['path']:.200} takes {headers.get('Allow')}, not {request.method:.20}"
        return refusal(RefusedError(message, 405, "method_not_allowed"))._replace(headers=headers).response()

    handlers: dict[int | type[Exception], Any] = {
        404: no_route, 405: no_method, HotloopError: refused, Exception: refused, ClientGoneError: gone, ClientDisconnect: gone,
    }  # fmt: skip
    for what, handler in handlers.items():
        app.add_exception_handler(what, handler)
    return app
