"""The part of a schema that is to blame, by its path."""

from collections.abc import Mapping
from typing import Any

import pytest

from hotloop.sampling import schema_fault
from hotloop.sampling.schema_fault import fault_path

BAD: dict[str, Any] = {"bad": True}


def fails(schema: Mapping[str, Any]) -> bool:
    """Whether there is a fault in what a parser would read of it: definitions only where they are referred to."""

    def holds(part: Any, depth: int = 0) -> bool:
        if isinstance(part, list):
            return any(holds(item, depth) for item in part)
        if not isinstance(part, dict | Mapping) or depth > 20:
            return False
        if part.get("bad") or ("$ref" in part and holds(resolved(part["$ref"]), depth + 1)):
            return True
        return any(holds(value, depth + 1) for key, value in part.items() if key not in ("$defs", "definitions"))

    def resolved(reference: str) -> Any:
        part: Any = schema
        for step in reference[2:].split("/"):
            part = part.get(step, {})
        return part

    return holds(schema)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (BAD, ""),
        ({"properties": {"ok": {}, "a": {"items": BAD}}}, ".properties.a.items"),
        ({"properties": {"a b": BAD}}, '.properties["a b"]'),
        ({"properties": {'x"' * 300: BAD}}, '.properties["' + 'x\\"' * 20 + '"]'),
        ({"anyOf": [{}, {"oneOf": [BAD]}]}, ".anyOf[1].oneOf[0]"),
        ({"prefixItems": [{}, BAD], "items": False}, ".prefixItems[1]"),
        ({"items": [{}, BAD]}, ".items[1]"),
        ({"additionalProperties": {"patternProperties": {"^a$": BAD}}}, '.additionalProperties.patternProperties["^a$"]'),
        ({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"ok": {}, "n": {"not": BAD}}}, ".$defs.n.not"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"items": BAD, "contains": {"$ref": "#/$defs/n"}}}}, ".$defs.n.items"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "if": BAD}}}, ".$defs.n.if"),
        ({"properties": {"a": {"b": BAD}}}, ".properties.a"),  # under a keyword that nobody knows
        ({"properties": 5, "items": "x", "anyOf": {}, "$ref": "#/a/b", "if": BAD}, ".if"),
    ],
)  # fmt: skip
def test_the_innermost_part_that_fails_as_the_whole_does(schema: dict[str, Any], path: str) -> None:  # known fault B65
    assert fault_path(schema, fails) == path


def test_references_in_a_circle_have_an_end() -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert fault_path(circle, lambda _: True).startswith(".$defs")


def test_a_huge_schema_is_searched_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fails_and_counts(schema: Mapping[str, Any]) -> bool:
        tries.append(1)
        return fails(schema)

    wide = {"properties": {"a": {"properties": {f"x{i}": {} for i in range(1000)} | {"y": BAD}}}}
    assert fault_path(wide, fails_and_counts) == ".properties.a"
    assert len(tries) <= 200
    monkeypatch.setattr(schema_fault, "_MAX_S", -1.0)
    assert fault_path(wide, fails_and_counts) == ""
