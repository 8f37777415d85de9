"""Answers with a form: how many finish, whether they are valid, and what the masks cost.

    structured.py schemas MODEL     200 schemas through the engine (needs the package jsonschema)
    structured.py masks MODEL       microseconds of a mask and of a push per token, along the answers of the same schemas
    structured.py step MODEL        what drawing takes of a step of 32 requests, each with a schema of its own, and without
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from typing import Any

import numpy as np

from hotloop import LLM, SamplingParams, StructuredOutputsParams
from hotloop.engine.masks import Masks, RowMasks, Wanted
from hotloop.errors import HotloopError
from hotloop.sampling.grammar import GrammarCompiler

NUM_SCHEMAS = 200
WORDS = [
    "name", "id", "title", "email", "address", "city", "country", "age", "price", "quantity", "status", "tags", "items",
    "created", "owner", "description", "score", "rating", "category", "sku", "color", "size", "weight", "currency", "phone",
    "website", "notes", "active", "verified", "language", "genre", "author", "isbn", "pages", "year",
]  # fmt: skip
TEXTS = [
    "red", "green", "blue", "draft", "published", "こんにちは", "naïve café", "Größe", "да", "emoji 😀", "a/b",
    'quote "x"', "1.0",
]  # fmt: skip
FORMATS = ["date", "date-time", "time", "email", "uuid", "ipv4", "hostname", "uri"]
THINGS = ["person", "book", "order", "recipe", "movie", "device", "invoice", "event", "city", "song"]


def schemas(seed: int = 0) -> list[dict[str, Any]]:
    """A mix as people publish them: nested objects, enums, anyOf, references, arrays, numbers, strings of all kinds."""
    rng = random.Random(seed)
    return [object_schema(rng, depth=rng.randint(1, 3), top=True) for _ in range(NUM_SCHEMAS)]


def object_schema(rng: random.Random, depth: int, *, top: bool = False) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(2, 7 if top else 4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: any_schema(rng, depth - 1) for name in names}}
    schema["required"] = names if rng.random() < 0.6 else rng.sample(names, rng.randint(1, len(names)))
    if rng.random() < 0.7:
        schema["additionalProperties"] = False
    if top and rng.random() < 0.3:
        node = {"type": "object", "properties": {"label": string_schema(rng), "children": {
            "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}}, "required": ["label"],
            "additionalProperties": False}  # fmt: skip
        schema["$defs"] = {"node": node}
        schema["properties"]["tree"] = {"$ref": "#/$defs/node"}
    if top and rng.random() < 0.2:
        extra = {"type": "object", "properties": {"kind": {"enum": rng.sample(TEXTS, 3)}}, "required": ["kind"]}
        schema["allOf"] = [extra]
        schema.pop("additionalProperties", None)
    return schema


def any_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "string", "number", "boolean", "enum", "const", "nullable"]
    if depth > 0:
        kinds += ["object", "object", "array", "array", "anyOf", "tuple", "map"]
    match rng.choice(kinds):
        case "string":
            return string_schema(rng)
        case "number":
            return number_schema(rng)
        case "boolean":
            return {"type": "boolean"}
        case "enum":
            return {"enum": rng.sample([*TEXTS, 1, 2.5, None, True], rng.randint(2, 6))}
        case "const":
            return {"const": rng.choice(TEXTS)}
        case "nullable":
            return {"type": [rng.choice(["string", "integer"]), "null"]}
        case "object":
            return object_schema(rng, depth)
        case "array":
            bounds = {"minItems": rng.randint(0, 2), "maxItems": rng.randint(2, 5)} if rng.random() < 0.7 else {}
            return {"type": "array", "items": any_schema(rng, depth - 1), **bounds}
        case "tuple":
            return {"type": "array", "prefixItems": [any_schema(rng, 0), any_schema(rng, 0)], "items": False, "minItems": 2}
        case "map":
            return {"type": "object", "additionalProperties": any_schema(rng, 0)}
        case _:
            return {"anyOf": [any_schema(rng, depth - 1), number_schema(rng)]}


def string_schema(rng: random.Random) -> dict[str, Any]:
    match rng.randint(0, 5):
        case 0:
            return {"type": "string", "format": rng.choice(FORMATS)}
        case 1:
            return {"type": "string", "pattern": rng.choice(["^[A-Z]{2}-\\d{4}$", "^[a-z]+(_[a-z]+)*$", "^\\w{3,12}$"])}
        case 2:
            return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(5, 80)}
        case _:
            return {"type": "string"}


def number_schema(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["integer", "number"])
    match rng.randint(0, 3):
        case 0:
            return {"type": kind, "minimum": rng.randint(-10, 5), "maximum": rng.randint(10, 20_000_000_000)}
        case 1:
            return {"type": kind, "exclusiveMinimum": 0}
        case 2:
            return {"type": kind, "multipleOf": rng.choice([5, 10, 100, 7])}
        case _:
            return {"type": kind}


def bounded(schema: Any) -> Any:
    """The schema with an end to every string, number, array, map and recursion: a small model has no other reason to stop."""
    if isinstance(schema, list):
        return [bounded(part) for part in schema]
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return schema
    if schema.get("$ref"):
        return {"type": "null"}
    kind = schema.get("type", ())
    ends: dict[str, Any] = {}
    if "string" in kind and "format" not in schema:
        ends["maxLength"] = 40
    if kind == "string" and schema.get("format") in ("uri", "hostname", "email"):
        return {"type": "string", "maxLength": 30}
    if "integer" in kind or kind == "number":
        ends |= {"minimum": -(10**6), "maximum": 10**6}
        ends["type"] = ["integer", "null"] if isinstance(kind, list) else "integer"
    if kind == "array":
        ends["maxItems"] = 2
    if kind == "object" and not schema.get("properties"):
        ends["maxProperties"] = 2
    elif kind == "object" and "allOf" not in schema:
        ends["additionalProperties"] = False
    return {**{key: bounded_in(key, value) for key, value in schema.items()}, **ends}


def bounded_in(key: str, value: Any) -> Any:
    if key == "allOf":
        return value
    return {name: bounded(part) for name, part in value.items()} if key == "properties" else bounded(value)


def conversation(schema: dict[str, Any], index: int) -> list[dict[str, str]]:
    ask = f"Describe a {THINGS[index % len(THINGS)]} of your choice with these fields: {', '.join(schema['properties'])}."
    return [{"role": "user", "content": ask}]


def answer_all(
    llm: LLM, many: list[dict[str, Any]], sampling: dict[str, Any], finish_within: int | None = None
) -> list[tuple[dict[str, Any], list[int], str, str | None]]:
    """(schema, output ids, text, finish reason) of those that can be enforced."""
    kept: list[dict[str, Any]] = []
    params: list[SamplingParams] = []
    for index, schema in enumerate(many):
        structure = StructuredOutputsParams(json=schema, finish_within=finish_within)
        try:
            GrammarCompiler(lambda: llm.tokenizer).compile(structure)
        except HotloopError as error:
            print(f"schema {index} refused: {error}")
            continue
        kept.append(schema)
        params.append(SamplingParams(seed=index, max_tokens=512, structured_outputs=structure, **sampling))
    outputs = llm.chat([conversation(schema, i) for i, schema in enumerate(kept)], params)
    choices = [output.outputs[0] for output in outputs]
    return [(s, c.token_ids, c.text, c.finish_reason) for s, c in zip(kept, choices, strict=True)]


def run_schemas(llm: LLM, many: list[dict[str, Any]], sampling: dict[str, Any], finish_within: int | None) -> None:
    import jsonschema

    begin_s = time.perf_counter()
    answers = answer_all(llm, many, sampling, finish_within)
    finished = valid = longest_blank = 0
    for schema, _, text, reason in answers:
        longest_blank = max([longest_blank, *map(len, re.findall(r"\s+", text))])
        if reason != "stop":
            print("unfinished:", json.dumps(schema, ensure_ascii=False)[:150], "...", repr(text[-120:]))
            continue
        finished += 1
        try:
            jsonschema.validate(json.loads(text), schema)
            valid += 1
        except (ValueError, jsonschema.ValidationError) as error:
            print("invalid:", str(error)[:200], repr(text[:200]))
    num_tokens = sum(len(ids) for _, ids, _, _ in answers)
    print(
        f"{sampling}, finish_within {finish_within}: {len(answers)} schemas of {len(many)} enforced, "
        f"{finished} answers finished, {valid} of "
        f"them valid, {num_tokens} tokens, longest white space {longest_blank} characters, "
        f"{time.perf_counter() - begin_s:.0f} s"
    )


def run_step(llm: LLM, many: list[dict[str, Any]], sampling: dict[str, Any], *, tokens: int, batch: int = 32) -> None:
    """Steps in which all decode. What of a mask's time does not lie beside the forward pass is in the drawing."""
    structures = [
        StructuredOutputsParams(json={"type": "array", "items": bounded(schema), "minItems": 100}) for schema in many[:batch]
    ]
    masks_s: list[float] = []
    fill = Masks._fill

    def timed_fill(self: Masks, wanted: Wanted) -> list[RowMasks | Exception]:
        begin_s = time.thread_time()
        result = fill(self, wanted)
        masks_s.append(time.thread_time() - begin_s)
        return result

    Masks._fill = timed_fill  # type: ignore[method-assign]
    for structured in (True, False) * 3:
        masks_s.clear()
        first = llm._core.steps.num_steps
        params = [
            SamplingParams(seed=i, max_tokens=tokens, ignore_eos=True, structured_outputs=s if structured else None, **sampling)
            for i, s in enumerate(structures)
        ]
        llm.generate([f"Describe a {THINGS[i % len(THINGS)]} as JSON." for i in range(batch)], params)
        steps = llm._core.steps.latest()[first - llm._core.steps.num_steps :]
        steps = steps[(steps[:, 7] == 0) & (steps[:, 8] == batch)]
        forward_s, sample_s = np.median(steps[:, 3]), np.median(steps[:, 4])
        step_s = np.median(steps[:, 1:6].sum(axis=1))
        mask_s = statistics.median(masks_s) if masks_s else 0.0
        print(
            f"{'schemas' if structured else 'plain  '} {sampling}: {len(steps)} steps of {batch}, {step_s * 1e3:.2f} ms each, "
            f"forward {forward_s * 1e3:.2f}, drawing {sample_s * 1e3:.2f} ms = {sample_s / step_s:.1%} of the step; masks take "
            f"{mask_s * 1e3:.2f} ms beside it, {(sample_s + mask_s) / step_s:.1%} with them"
        )


def run_masks(llm: LLM, many: list[dict[str, Any]], sampling: dict[str, Any]) -> None:
    mask = np.zeros(llm.tokenizer.vocab_size // 32 + 1, np.uint32)
    masks_us: list[float] = []
    pushes_us: list[float] = []
    compiles_ms: list[float] = []
    compiler = GrammarCompiler(lambda: llm.tokenizer)
    compiler.compile(StructuredOutputsParams(json_object=True))
    for schema, ids, _, _ in answer_all(llm, many, sampling):
        begin_s = time.perf_counter()
        constraint = compiler.compile(StructuredOutputsParams(json=schema)).start(llm.tokenizer.eos_token_ids)
        compiles_ms.append((time.perf_counter() - begin_s) * 1e3)
        for i, token_id in enumerate(ids):
            if token_id in llm.tokenizer.eos_token_ids:
                break
            begin_s = time.perf_counter()
            constraint.sync(ids[:i])
            constraint.fill_mask(mask)
            filled_s = time.perf_counter()
            constraint.push(token_id)
            pushes_us.append((time.perf_counter() - filled_s) * 1e6)
            masks_us.append((filled_s - begin_s) * 1e6)
    for name, values, unit in (("compile", compiles_ms, "ms"), ("mask", masks_us, "us"), ("push", pushes_us, "us")):
        print(
            f"{name}: mean {statistics.mean(values):.1f}, median {statistics.median(values):.1f}, 99 % "
            f"{np.percentile(values, 99):.1f}, most {max(values):.1f} {unit} ({len(values)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["schemas", "masks", "step"])
    parser.add_argument("model")
    parser.add_argument("--bounded", action="store_true", help="give every string, number, array and map an end")
    parser.add_argument("--finish-within", type=int, help="see docs/structured_outputs.md; of schemas")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer of step; the parser warms up over the first 64")
    parser.add_argument("--num", type=int, default=NUM_SCHEMAS)
    parser.add_argument("--sampling", type=json.loads, default={"temperature": 0}, help="fields of SamplingParams, as JSON")
    args = parser.parse_args()
    many = [bounded(schema) for schema in schemas()] if args.bounded else schemas()
    llm = LLM(args.model, max_model_len=1024)
    if args.what == "schemas":
        run_schemas(llm, many[: args.num], args.sampling, args.finish_within)
    elif args.what == "masks":
        run_masks(llm, many[: args.num], args.sampling)
    else:
        run_step(llm, many[: args.num], args.sampling, tokens=args.tokens)


if __name__ == "__main__":
    main()
