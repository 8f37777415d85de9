"""The fields that give an answer a form: OpenAI's response_format, and vLLM's structured_outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hotloop.errors import InvalidRequestError
from hotloop.structured_outputs import StructuredOutputsParams

STRUCTURED_OUTPUTS_NAMES = [
    field.name for field in fields(StructuredOutputsParams) if field.compare and field.name != "calls"
]


def _one_of(name: str, schema: Mapping[str, Any], /, **others: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: schema, **others}, "additionalProperties": False}


_OBJECT, _TEXT, _BOOLEAN = {"type": "object"}, {"type": "string"}, {"type": "boolean"}
_OF_JSON: Mapping[str, Mapping[str, Any]] = {
    "disable_any_whitespace": _BOOLEAN, "finish_within": {"type": "integer", "minimum": 1},
}  # fmt: skip
STRUCTURED_OUTPUTS_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        _one_of("json", _OBJECT, **_OF_JSON),
        _one_of("json_object", {"const": True}, **_OF_JSON),
        _one_of("regex", {**_TEXT, "minLength": 1}),
        _one_of("grammar", {**_TEXT, "minLength": 1}),
        _one_of("choice", {"type": "array", "items": {**_TEXT, "minLength": 1}, "minItems": 1}),
        *(_one_of(name, schema, **_OF_JSON) for name, schema in _OF_JSON.items()),  # beside response_format
    ]
}
RESPONSE_FORMAT_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        _one_of("type", {"enum": ["text", "json_object"]}),
        {
            **_one_of(
                "type", {"const": "json_schema"},
                json_schema=_one_of("schema", _OBJECT, name=_TEXT, description=_TEXT, strict=_BOOLEAN),
            ),
            "required": ["type", "json_schema"],
        },
    ]
}  # fmt: skip


def structured_outputs(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """given: the fields of a body. Beside a response_format structured_outputs may say how, but not give another form.

    Raises: InvalidRequestError.
    """
    of_format = None if "response_format" not in given else _response_format(given["response_format"])
    if "structured_outputs" not in given:
        return of_format
    value = given["structured_outputs"]
    if not isinstance(value, Mapping) or value.keys() - set(STRUCTURED_OUTPUTS_NAMES):
        raise InvalidRequestError(f"structured_outputs is {value!r:.60}; it may hold {', '.join(STRUCTURED_OUTPUTS_NAMES)}")
    parts = {name: part for name, part in value.items() if part is not None}
    if of_format is None:
        return StructuredOutputsParams(**parts)
    if parts.keys() - _OF_JSON.keys():
        raise InvalidRequestError(
            "response_format and structured_outputs both give the answer a form; leave one out (beside response_format "
            f"structured_outputs may hold {' and '.join(_OF_JSON)})"
        )
    return replace(of_format, **parts)


def _response_format(value: object) -> StructuredOutputsParams | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    extra = {"json_schema"} if kind == "json_schema" else set()
    if not isinstance(value, Mapping) or kind not in ("text", "json_object", "json_schema") or value.keys() - {"type"} - extra:
        raise InvalidRequestError(
            f"response_format is {value!r:.60}; it must be {{'type': 'text'}}, {{'type': 'json_object'}} or "
            "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}"
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    wrapper = value.get("json_schema")
    known = {"name", "description", "strict", "schema"}
    if not isinstance(wrapper, Mapping) or wrapper.get("schema") is None or wrapper.keys() - known:
        raise InvalidRequestError(
            f"json_schema of response_format is {wrapper!r:.60}; it must have 'schema', and may have {', '.join(sorted(known))}"
        )
    if not isinstance(wrapper.get("strict"), bool | None):
        raise InvalidRequestError(f"strict of response_format is {wrapper['strict']!r:.60}; it must be true or false")
    return StructuredOutputsParams(json=wrapper["schema"], called="response_format.json_schema.schema")
