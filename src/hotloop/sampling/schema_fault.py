"""Where in a JSON schema the fault lies that keeps it from being enforced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

_OF_NAMES = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "not", "if", "then", "else",
)  # fmt: skip
_MAX_TRIES = 200
_MAX_S = 0.5

Step = str | int
Schema = dict[str, Any]


def fault_path(schema: Schema, fails_alike: Callable[[Schema], bool]) -> str:
    """The path of the innermost part that fails by itself as the whole does: ".properties.a.items", or "" for the whole.

    fails_alike: whether a schema fails with the reason of the whole. It is asked for some hundred parts, half a second long;
    what has been found by then is the answer.
    """
    end_s = time.monotonic() + _MAX_S
    shared: Schema = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    num_tries = 0
    path: tuple[Step, ...] = ()
    seen = {path}
    part: Schema = schema
    while True:
        for steps, child in parts_of(schema, part):
            here = (*path, *steps) if steps[:1] != ("#",) else steps[1:]
            if here in seen or _pointed_at(child) in seen:  # what is wrong there is found there
                continue
            seen.add(here)
            num_tries += 1
            if num_tries > _MAX_TRIES or time.monotonic() > end_s:
                return written_path(path)
            if fails_alike({**shared, **child}):
                path, part = here, child
                break
        else:
            return written_path(path)


def parts_of(root: Schema, schema: Schema) -> Iterator[tuple[tuple[Step, ...], Schema]]:
    """The schemas inside one, with their paths from it; of a reference from the root, after "#"."""
    for name in _OF_NAMES:
        if isinstance(schema.get(name), dict):
            yield from (((name, key), part) for key, part in schema[name].items() if isinstance(part, dict))
    for name in _OF_LISTS:
        if isinstance(schema.get(name), list):
            yield from (((name, i), part) for i, part in enumerate(schema[name]) if isinstance(part, dict))
    yield from (((name,), schema[name]) for name in _SINGLE if isinstance(schema.get(name), dict))
    steps = _pointed_at(schema)
    if steps is not None:
        part: Any = root
        for step in steps:
            part = part.get(step) if isinstance(part, dict) else None
        if isinstance(part, dict):
            yield ("#", *steps), part


def _pointed_at(schema: Schema) -> tuple[Step, ...] | None:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/"))


def written_path(path: tuple[Step, ...]) -> str:
    """As fault_path says it."""

    def step(name: Step) -> str:
        if isinstance(name, int):
            return f"[{name}]"
        plain = name.removeprefix("$").isidentifier() and len(name) <= 40
        return f".{name}" if plain else f"[{json.dumps(name[:40], ensure_ascii=False)}]"

    written = "".join(map(step, path))
    return written if len(written) <= 200 else f"{written[:100]} ... {written[-90:]}"
