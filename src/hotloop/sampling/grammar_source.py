"""What a StructuredOutputsParams means, in llguidance's input format."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hotloop.errors import InvalidRequestError
from hotloop.nesting import MAX_LEVELS, is_too_deep
from hotloop.sampling.call_grammar import triggered_grammar, whole_grammar
from hotloop.sampling.gbnf import gbnf_to_lark
from hotloop.sampling.schema_fault import Step, fault_path, parts_of, written_path
from hotloop.structured_outputs import StructuredOutputsParams

# White space that JSON may have wherever it allows any: a model that likes to lay out its JSON can, and none can go on forever.
_WHITESPACE = r" |\n {0,16}"
# Characters of a time with nanoseconds and an offset. By the standard a fraction of a second has any number of digits, and a
# small model finds no end of them.
_MAX_TIME_CHARS = {"date-time": 35, "time": 24}
_CONSTANTS = ("const", "enum")
_MAX_BOUND = 2**63 - 1024  # the largest float64 that is an int64
_MAX_MULTIPLES = 100_000  # of all `multipleOf` together: an automaton has as many states, and compiling is quadratic in them


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """grammar: JSON that llguidance reads. is_schema: of JSON schemas, whose parsers may be wider than a grammar's."""

    grammar: str
    is_schema: bool


def grammar_source(spec: StructuredOutputsParams, control_ids: Mapping[str, int] | None = None) -> GrammarSource:
    """Of the whole answer. control_ids: text to id; calls may need them. Raises InvalidRequestError."""
    if spec.calls is not None:
        return _lark_of_schemas(whole_grammar(spec.calls, spec.name, control_ids or {}, _as_json(spec)))
    if spec.regex is not None:
        return _lark(f"start: /{_lark_regex(spec.regex)}/")
    if spec.choice is not None:
        return _lark(f"start: /{'|'.join(map(_literal, spec.choice))}/")
    if spec.grammar is not None:
        is_lark = re.search(r"^\s*(%llguidance\b|start\s*:(?!:=))", spec.grammar, re.MULTILINE)
        return _lark(_with_prepared_schemas(spec) if is_lark else gbnf_to_lark(spec.grammar))
    assert isinstance(spec.json, str | None)
    schema: dict[str, Any] = {"type": "object"} if spec.json is None else parse_schema(spec.json, spec.name)
    return schema_source(schema, disable_any_whitespace=spec.disable_any_whitespace)


def schema_source(schema: dict[str, Any], *, disable_any_whitespace: bool = False) -> GrammarSource:
    """schema: parsed; gets some keys more."""
    _prepare(schema, disable_any_whitespace)
    return GrammarSource(json.dumps({"grammars": [{"json_schema": schema}]}), True)


def triggered_sources(spec: StructuredOutputsParams, control_ids: Mapping[str, int]) -> list[GrammarSource]:
    """Of what follows each of the triggers of calls. Raises InvalidRequestError."""
    calls = spec.calls
    assert calls is not None
    return [
        _lark_of_schemas(triggered_grammar(calls, trigger.stands_for, control_ids, _as_json(spec)))
        for trigger in calls.triggers
    ]


def schemas_of(spec: StructuredOutputsParams) -> Iterator[tuple[str, str]]:
    """The schemas, each with its name in messages."""
    if isinstance(spec.json, str):
        yield spec.name, spec.json
    if spec.calls is not None:
        yield from ((form.called, form.schema) for form in spec.calls.forms)
        if spec.calls.content_schema is not None:
            yield spec.name, spec.calls.content_schema


def _as_json(spec: StructuredOutputsParams) -> Callable[[str, str], str]:
    """A schema's text, which has a name in messages, as Lark's."""

    def lark(text: str, name: str) -> str:
        schema = parse_schema(text, name)
        _prepare(schema, spec.disable_any_whitespace)
        return f"%json {json.dumps(schema)}"

    return lark


def _prepare(schema: dict[str, Any], disable_any_whitespace: bool) -> None:
    _make_enforceable(schema)
    whitespace: dict[str, Any] = (
        {"whitespace_flexible": False} if disable_any_whitespace else {"whitespace_pattern": _WHITESPACE}
    )
    schema["x-guidance"] = {**whitespace, "json_allow_general_unicode_escapes": True}


def _make_enforceable(schema: dict[str, Any]) -> None:
    """All parts of it; what they allow becomes less, if anything."""
    for path, part in parts_of(schema, schema):
        if path[0] != "#":  # where a reference leads is reached without it
            _make_enforceable(part)
    if schema.get("uniqueItems") is False:  # says nothing, and the parser does not know the key
        del schema["uniqueItems"]
    _bound_times(schema)
    _bound_numbers(schema)


def _bound_times(schema: dict[str, Any]) -> None:
    most = _MAX_TIME_CHARS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if most is not None and "maxLength" not in schema and "minLength" not in schema:
        schema["maxLength"] = most


def _bound_numbers(schema: dict[str, Any]) -> None:
    """Bounds that say "an int64", "a float", or are no float64: the parser has no others."""
    if "enum" in schema or "const" in schema:
        return
    for name, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)):
        bound = schema.get(name)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            continue
        if bound * sign > _MAX_BOUND:
            schema[name] = sign * _MAX_BOUND
        elif isinstance(bound, int) and abs(bound) <= _MAX_BOUND and float(bound) * sign > bound * sign:
            schema[name] = int(math.nextafter(float(bound), -sign * math.inf))


def parse_schema(text: str, name: str) -> dict[str, Any]:
    """A schema whose numbers can be compiled in bounded time. name: for messages. Raises InvalidRequestError."""
    try:
        schema: dict[str, Any] | None = json.loads(text)
    except RecursionError:
        schema = None
    if schema is None or is_too_deep(schema):
        raise InvalidRequestError(f"{name} is nested on more than {MAX_LEVELS} levels; simplify it")
    _check_numbers(schema, name)
    multiples = _multiples(schema)
    if math.lcm(*multiples) > _MAX_MULTIPLES:
        where = name + fault_path(schema, lambda part: math.lcm(*_multiples(part)) > _MAX_MULTIPLES)
        raise InvalidRequestError(
            f"{where}: multipleOf {', '.join(map(str, sorted(multiples)))[:60]} is too fine; the least common multiple of all "
            f"must be at most {_MAX_MULTIPLES} without trailing zeros"
        )
    if "x-guidance" in schema:
        raise InvalidRequestError(f"{name} has the key 'x-guidance', which is not supported; leave it out")
    return schema


def _check_numbers(schema: dict[str, Any], name: str) -> None:
    """Raises InvalidRequestError for a number that the parser would write as another one, or that would end its process.

    Of the latter kind is an integer that can be no more than the least int64. A reference may lead anywhere in a schema, so the
    place of a number does not matter.
    """
    for path, key, number in _numbers(schema):
        fault = None
        if number != number:
            fault = "JSON has no such number"
        elif key in (*_CONSTANTS, "maximum", "exclusiveMaximum") and number < -_MAX_BOUND:
            fault = f"less than {-_MAX_BOUND} is not supported"
        elif key in _CONSTANTS and isinstance(number, int) and not (number <= _MAX_BOUND and float(number) == number):
            fault = "it would be rounded to a float64; give it as a string"
        if fault is not None:
            raise InvalidRequestError(f"{name}{written_path(path)} is {number!r:.40}; {fault}")


def _numbers(value: object, path: tuple[Step, ...] = (), key: str = "") -> Iterator[tuple[tuple[Step, ...], str, int | float]]:
    """All there are, with their paths and keywords."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _numbers(part, (*path, name), key if key in _CONSTANTS else name)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _numbers(part, (*path, index), key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, key, value


def _multiples(schema: dict[str, Any]) -> set[int]:
    """All numbers of `multipleOf`, without trailing zeros."""
    multiples: set[int] = set()
    for path, _, number in _numbers(schema):
        if path[-1] == "multipleOf" and number:
            _, digits, _ = Decimal(str(number)).normalize().as_tuple()
            multiples.add(int("".join(map(str, digits))))
    return multiples


def _lark_of_schemas(text: str) -> GrammarSource:
    return GrammarSource(json.dumps({"grammars": [{"lark_grammar": text}]}), True)


def _lark(text: str) -> GrammarSource:
    return GrammarSource(json.dumps({"grammars": [{"lark_grammar": text}]}), False)


def _lark_regex(regex: str) -> str:
    """Between slashes. \\d and \\w are ASCII, as in JSON schemas."""
    from llguidance import regex_to_lark

    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise InvalidRequestError("regex ends with a backslash that escapes nothing")
    lark = regex_to_lark(regex, "dw")
    return lark or "(?:)"  # two slashes would begin a comment


def _literal(text: str) -> str:
    """A regex that matches just the text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _with_prepared_schemas(spec: StructuredOutputsParams) -> str:
    """Its grammar, in Lark's syntax, with schemas as they are where they stand alone."""
    lark = spec.grammar or ""
    decoder = json.JSONDecoder()
    parts: list[str] = []
    end = 0
    for match in re.finditer(r"%json\b\s*", lark):
        if match.start() < end:  # a text within a schema
            continue
        try:
            schema, after = decoder.raw_decode(lark, match.end())
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"grammar: what follows %json is no JSON schema: {error}") from None
        if not isinstance(schema, dict):
            raise InvalidRequestError(f"grammar: what follows %json is {schema!r:.60}; it must be a JSON schema: an object")
        schema = parse_schema(json.dumps(schema), "structured_outputs.grammar: a schema")
        _prepare(schema, spec.disable_any_whitespace)
        parts += [lark[end : match.end()], json.dumps(schema)]
        end = after
    return "".join([*parts, lark[end:]])
