"""The OpenAPI document says what the server does: its routes, its fields, its statuses."""

from itertools import product
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from hotloop import AsyncLLM
from hotloop.server.app import create_app
from hotloop.server.bodies import parse_body
from hotloop.server.fields import CHAT, COMPLETIONS, FIELDS_OF, Endpoint
from server.live import make_service

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def app(llm: AsyncLLM) -> FastAPI:
    return create_app(make_service(llm))


def test_every_route_is_in_it(client: httpx.Client, app: FastAPI) -> None:
    document = client.get("/openapi.json").json()
    assert document == app.openapi()
    found = {(path, method) for path, operations in document["paths"].items() for method in operations}
    there = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert found == there


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_every_field_is_in_it(client: httpx.Client, endpoint: Endpoint) -> None:
    operation = client.get("/openapi.json").json()["paths"][endpoint]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == FIELDS_OF[endpoint].keys()
    assert schema["additionalProperties"] is False
    assert operation["responses"].keys() == {
        "200", "400", "401", "404", "405", "408", "413", "415", "429", "500", "503",
    }  # fmt: skip


def examples(schema: dict[str, Any]) -> list[Any]:
    """Values that a schema allows: of every alternative, at the limits of every number."""
    if not schema:
        return ["a", 5, {}]
    if "anyOf" in schema:
        return [value for alternative in schema["anyOf"] for value in examples(alternative)]
    if "const" in schema or "enum" in schema:
        return schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if kind == "object":
        parts = {name: examples(schema["properties"][name]) for name in schema.get("required", [])}
        return [dict(zip(parts, values, strict=True)) for values in product(*parts.values())]
    if kind == "array":
        return [examples(schema["items"])[:1] * schema.get("minItems", 0)]
    if kind in ("number", "integer"):
        low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
        inside = low if low is not None and "minimum" in schema else 1
        return [value for value in (inside, high) if value is not None]
    if kind == "array" and schema.get("minItems"):
        return [examples(schema["items"])[:1]]
    return {
        "null": [None], "boolean": [True, False], "string": ["a"],
    }[kind]  # fmt: skip


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_what_the_schema_allows_is_accepted(endpoint: Endpoint) -> None:
    """By the parser; a model may still have fewer tokens than an id says."""
    needed: dict[str, Any] = {"messages": MESSAGES} if endpoint == CHAT else {"prompt": "a"}
    for name, field in FIELDS_OF[endpoint].items():
        if name in needed:
            continue
        for value in [None, *examples(dict(field.schema))]:
            body = needed | {name: value}
            if name == "top_logprobs":
                body["logprobs"] = True
            if name == "stream_options":
                body["stream"] = True
            if name == "tool_choice" and value is not None:
                body["tools"] = [{"type": "function", "function": {"name": "a"}}]
            if name == "structured_outputs" and value and value.keys() <= {"finish_within", "disable_any_whitespace"}:
                body["response_format"] = {"type": "json_object"}
            if name == "min_tokens":
                body["max_tokens"] = 2**63 - 1
            parse_body(endpoint, body)
