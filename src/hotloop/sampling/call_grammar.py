"""What a CallsForm means, as grammars: of the whole answer, or of what follows each of its triggers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from hotloop.structured_outputs import CallForm, CallsForm

Json = Callable[[str, str], str]  # a schema's text, which has a name in messages, as Lark's


def whole_grammar(calls: CallsForm, name: str, control_ids: Mapping[str, int], as_json: Json) -> str:
    """Lark of an answer that is calls, or JSON of content_schema. name: of that, in messages."""
    start = "call" + _further(calls)
    if calls.content_schema is not None and not calls.must:
        start = f"content | {start}"
    rules = [f"start: {start}", _call_rule(calls, control_ids), *_body_rules(calls, as_json)]
    if calls.content_schema is not None:
        rules.append(f"content: {as_json(calls.content_schema, name)}")
    return "\n".join(rules)


def triggered_grammar(calls: CallsForm, stands_for: str, control_ids: Mapping[str, int], as_json: Json) -> str:
    """Lark of what follows a trigger: the rest of a call that begins with ``stands_for``, and of others if that ends the
    answer."""
    pieces, rest = list(calls.opening), stands_for
    while pieces and rest.startswith(pieces[0]):
        rest = rest.removeprefix(pieces.pop(0))
    closing = _literals(calls.closing, control_ids)
    start = f"start: {_literals(pieces, control_ids)} first {closing}" + (_further(calls) if calls.at_start else "")
    assert all(form.begin.startswith(rest) for form in calls.forms), "a trigger stands for the beginning of every call"
    first = [f"{_literals([form.begin.removeprefix(rest)], {})} json_{i} {_end(form)}" for i, form in enumerate(calls.forms)]
    return "\n".join([start, "first: " + " | ".join(first), _call_rule(calls, control_ids), *_body_rules(calls, as_json)])


def _further(calls: CallsForm) -> str:
    return f" ({json.dumps(calls.separator)} call)*" if calls.many else ""


def _call_rule(calls: CallsForm, control_ids: Mapping[str, int]) -> str:
    return f"call: {_literals(calls.opening, control_ids)} body {_literals(calls.closing, control_ids)}"


def _body_rules(calls: CallsForm, as_json: Json) -> list[str]:
    bodies = [f"{json.dumps(form.begin)} json_{i} {_end(form)}" for i, form in enumerate(calls.forms)]
    schemas = [f"json_{i}: {as_json(form.schema, form.called)}" for i, form in enumerate(calls.forms)]
    return ["body: " + " | ".join(bodies), *schemas]


def _end(form: CallForm) -> str:
    return _literals([form.end], {})


def _literals(pieces: Sequence[str], control_ids: Mapping[str, int]) -> str:
    return " ".join(f"<[{control_ids[p]}]>" if p in control_ids else json.dumps(p) for p in pieces if p)
