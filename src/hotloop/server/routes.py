"""The routes of the server. All of them take and give plain JSON; openapi.py says what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from hotloop.engine.chats import MAX_LONG_CHARS, Chat
from hotloop.errors import InvalidRequestError
from hotloop.server.answers import answer, check_model
from hotloop.server.fields import CHAT, COMPLETIONS
from hotloop.server.json_body import understood
from hotloop.server.openapi import own_version
from hotloop.server.service import Service

_OF_CHATS = ("tools", "chat_template_kwargs")  # what a prompt depends on beside the messages

Handler: TypeAlias = Callable[..., Awaitable[Response]]


def add_routes(app: FastAPI, service: Service) -> None:
    @app.post(CHAT)
    async def chat_completions(request: Request) -> Response:
        return await answer(service, CHAT, request)

    @app.post(COMPLETIONS)
    async def completions(request: Request) -> Response:
        return await answer(service, COMPLETIONS, request)

    def get(path: str) -> Callable[[Handler], Handler]:
        return app.api_route(path, methods=["GET", "HEAD"])

    @get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_model(service, name) for name in service.settings.model_names]})

    @get("/v1/models/{model:path}")
    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        check_model(service, name)
        return _json(_model(service, name))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        return await _converted(service, request, partial(_tokenize, service))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        return await _converted(service, request, partial(_detokenize, service))

    @get("/health")
    async def health() -> Response:
        return _status(*service.health.status())

    @get("/ready")
    async def ready() -> Response:
        return _status(*service.health.readiness())

    @get("/version")
    async def version() -> Response:
        return _json({"version": own_version(), "system_fingerprint": service.fingerprint})

    @get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _status(status: int, reason: str) -> Response:
    return _json({"status": "ok" if status == 200 else "unavailable", "reason": reason}, status)


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name, "object": "model", "created": service.started_s, "owned_by": "hotloop",
        "max_model_len": service.llm.info.max_model_len,
    }  # fmt: skip


async def _converted(
    service: Service, request: Request, convert: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Response:
    """What ``convert`` makes of the body."""

    def response(body: object) -> Response:
        if not isinstance(body, dict):
            raise InvalidRequestError(f"the body is {body!r:.60}; it must be an object")
        given = {name: value for name, value in body.items() if value is not None}
        check_model(service, given.pop("model", None))
        return _json(convert(given))

    return await understood(request, service.tokenizing, response)


def _tokenize(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    of_chat = _OF_CHATS if "messages" in given else ()
    unknown = given.keys() - {"prompt", "messages", "add_special_tokens", "return_token_strs", *of_chat}
    if unknown or ("prompt" in given) == ("messages" in given):
        raise InvalidRequestError(
            "the body must hold prompt or messages, and may hold model, add_special_tokens, return_token_strs and, beside "
            f"messages, {' and '.join(_OF_CHATS)}" + (f", but not {min(unknown)!r:.60}" if unknown else "")
        )
    inputs = service.llm.inputs
    add_special, returns_strings = given.get("add_special_tokens", True), given.get("return_token_strs", False)
    if not isinstance(add_special, bool) or not isinstance(returns_strings, bool):
        raise InvalidRequestError("add_special_tokens and return_token_strs must be true or false")
    if "messages" in given:
        ids = inputs.render(Chat(given["messages"], **{name: given.get(name) for name in _OF_CHATS})).token_ids
    else:
        ids = inputs.tokenizer.encode(_checked_text(given["prompt"]), add_special=add_special)
    strings = [inputs.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids] if returns_strings else None
    return {"count": len(ids), "max_model_len": inputs.max_model_len, "tokens": ids, "token_strs": strings}


def _checked_text(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"prompt is {prompt!r:.60}; it must be a text")
    if len(prompt) > MAX_LONG_CHARS:
        raise InvalidRequestError(f"the text has {len(prompt)} characters; {MAX_LONG_CHARS} at most")
    return prompt


def _detokenize(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    ids = given.get("tokens")
    if given.keys() != {"tokens"} or not isinstance(ids, list):
        raise InvalidRequestError("the body must hold tokens, a list of token ids, and may hold model")
    if len(ids) > service.llm.inputs.max_model_len:
        raise InvalidRequestError(
            f"tokens holds {len(ids)} ids; at most as many as the context has: {service.llm.inputs.max_model_len}"
        )
    if not all(type(i) is int for i in ids):
        raise InvalidRequestError("tokens must be a list of integers")
    return {"prompt": service.llm.tokenizer.decode(ids, skip_special=False)}
