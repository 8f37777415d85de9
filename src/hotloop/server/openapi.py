"""The OpenAPI document: request schemas from the table of fields, and every status a route may answer with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hotloop.server.fields import CHAT, COMPLETIONS, FIELDS_OF, Endpoint
from hotloop.server.service import Service

_Json = dict[str, Any]

_ERRORS = {
    400: "The body says something that cannot be served; the message names it.",
    401: "An API key is missing or wrong.",
    404: "No such route or model.",
    405: "The route takes another method.",
    408: "The body took too long to arrive, or the request's deadline passed.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "The engine failed.",
    503: "The server is starting, draining or has no engine.",
}
_POST_ERRORS = tuple(_ERRORS)
_GET_ERRORS = (401, 405, 503)

_FINISH_REASONS = {"chat.completion": ("stop", "length", "tool_calls"), "text_completion": ("stop", "length")}
_TEXT: _Json = {"type": "string"}
_INTEGER: _Json = {"type": "integer"}


def own_version() -> str:
    """Of the installed package; a source tree has none."""
    try:
        return version("hotloop")
    except PackageNotFoundError:
        return "unknown"


def document(service: Service) -> _Json:
    post = {
        CHAT: ("Answer a conversation.", _body_schema(CHAT), _answer_schema("chat.completion")),
        COMPLETIONS: ("Complete prompts.", _body_schema(COMPLETIONS), _answer_schema("text_completion")),
        "/tokenize": ("Token ids of a text or a conversation.", _TOKENIZE, _object(
            count=_INTEGER, max_model_len=_INTEGER, tokens={"type": "array", "items": _INTEGER},
            token_strs={"anyOf": [{"type": "array", "items": _TEXT}, {"type": "null"}]},
        )),
        "/detokenize": ("Text of token ids.", _DETOKENIZE, _object(prompt=_TEXT)),
    }  # fmt: skip
    get = {
        "/v1/models": ("The served model.", _object(object={"const": "list"}, data={"type": "array", "items": _MODEL})),
        "/v1/models/{model}": ("One model.", _MODEL),
        "/health": ("200 while steps complete when there is work.", _STATUS),
        "/ready": ("200 while new requests are taken.", _STATUS),
        "/version": ("What is running.", _object(version=_TEXT, system_fingerprint=_TEXT)),
        "/openapi.json": ("This document.", {"type": "object"}),
    }
    paths: _Json = {path: {"post": _post(path, *parts)} for path, parts in post.items()}
    paths |= {path: {"get": _get(path, *parts)} for path, parts in get.items()}
    metrics = _get("/metrics", "Prometheus's text format.", _TEXT)
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    paths["/metrics"] = {"get": metrics}
    paths["/v1/models/{model}"]["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"enum": list(service.settings.model_names)}}
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotloop", "version": own_version()},
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": _object(
                    error=_object(message=_TEXT, type=_TEXT, param=_nullable(_TEXT), code=_nullable(_TEXT))
                )
            },
        },
    }


def _post(path: str, summary: str, body: _Json, answer: _Json) -> _Json:
    operation = _operation(path, summary, answer, _POST_ERRORS)
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if path in (CHAT, COMPLETIONS):
        # Without a schema: OpenAPI 3.1 has no words for a sequence of events; what is in them: docs/server.md.
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return operation


def _get(path: str, summary: str, answer: _Json) -> _Json:
    errors = (*_GET_ERRORS, 404) if "{" in path else _GET_ERRORS
    operation = _operation(path, summary, answer, errors)
    if answer is _STATUS:
        operation["responses"]["503"] = _response("Not so; the reason says why.", _STATUS)
    return operation


def _operation(path: str, summary: str, answer: _Json, errors: tuple[int, ...]) -> _Json:
    responses = {"200": _response(summary, answer)}
    responses |= {str(status): _response(_ERRORS[status], {"$ref": "#/components/schemas/Error"}) for status in errors}
    return {"operationId": path.strip("/").replace("/", "_"), "summary": summary, "responses": responses}


def _response(about: str, schema: _Json) -> _Json:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _body_schema(endpoint: Endpoint) -> _Json:
    properties = {
        name: {**_nullable(dict(field.schema)), "description": field.about}
        for name, field in FIELDS_OF[endpoint].items()
    }
    required = "messages" if endpoint == CHAT else "prompt"
    properties[required] = dict(FIELDS_OF[endpoint][required].schema)
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


def _answer_schema(kind: str) -> _Json:
    usage = _object(prompt_tokens=_INTEGER, completion_tokens=_INTEGER, total_tokens=_INTEGER)
    return _object(
        id=_TEXT, object={"const": kind}, created=_INTEGER, model=_TEXT, system_fingerprint=_TEXT, seed=_INTEGER,
        choices={"type": "array", "items": _object(index=_INTEGER, finish_reason={"enum": list(_FINISH_REASONS[kind])})},
        usage=usage, timings={"type": "object"},
    )  # fmt: skip


def _object(**properties: _Json) -> _Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _nullable(schema: _Json) -> _Json:
    return schema if schema.get("type") == "null" else {"anyOf": [schema, {"type": "null"}]}


_MODEL = _object(id=_TEXT, object={"const": "model"}, created=_INTEGER, owned_by=_TEXT, max_model_len=_INTEGER)
_STATUS = _object(status=_TEXT, reason=_TEXT)
_TOKENIZE: _Json = {
    "type": "object",
    "properties": {
        "model": _nullable(_TEXT), "prompt": _nullable(_TEXT),
        **{name: _nullable(dict(FIELDS_OF[CHAT][name].schema)) for name in ("messages", "tools", "chat_template_kwargs")},
        "add_special_tokens": _nullable({"type": "boolean"}), "return_token_strs": _nullable({"type": "boolean"}),
    },
    "additionalProperties": False,
}  # fmt: skip
_DETOKENIZE: _Json = {
    "type": "object",
    "properties": {"model": _nullable(_TEXT), "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    "required": ["tokens"],
    "additionalProperties": False,
}
