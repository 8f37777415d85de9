"""finish_within: answers come to their end although the model, which here draws at random, has no wish to."""

import json
import random
from typing import Any

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError
from hotloop.sampling.closing import Closing
from hotloop.sampling.constraint import Mask
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.structured_outputs import StructuredOutputsParams
from hotloop.text.tokenizer import Tokenizer
from tiny_tokenizer import tokenizer_metadata

VOCAB_SIZE = 320
TOKENS = [b'"', b"}", b'"}', b",", b', "', b"q", b"7", b"00", b"x7", b" ", b":", b"", b'}"']
CASES: list[tuple[set[bytes], bytes, set[bytes]]] = [
    ({b'"', b"q", b"}", b"7", b'"}'}, b"q", {b'"', b'"}'}),  # in a string "}" is text
    ({b"q", b"}", b"7"}, b"q", {b"}", b"7"}),  # it cannot end yet: no circles
    ({b"}", b",", b"7", b" "}, b"7", {b"}"}),
    ({b",", b', "', b"7", b" "}, b"7", {b",", b', "'}),
    ({b"7", b"00", b":"}, b"x7", {b":"}),
    ({b"7", b"00"}, b"x7", {b"7"}),
    ({b"7", b"00"}, b" ", {b"7", b"00"}),
    ({b"7"}, b"7", {b"7"}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_left_of_a_mask(case: int) -> None:
    allowed, before, left = CASES[case]
    mask = np.full(2, 0, np.uint32)
    for text in allowed:
        mask[0] |= np.uint32(1 << TOKENS.index(text))
    if left == allowed:
        mask[1] = 5  # ids outside the vocabulary of the texts: stop tokens
    Closing(TOKENS).restrict(mask, [TOKENS.index(before)])
    assert {text for i, text in enumerate(TOKENS) if mask[0] >> np.uint32(i) & np.uint32(1)} == left


@pytest.fixture(scope="module")
def compiler() -> tuple[Tokenizer, GrammarCompiler]:
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(VOCAB_SIZE))
    return tokenizer, GrammarCompiler(lambda: tokenizer)


CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/node"}}
NODE = {"type": "object", "properties": {"children": CHILDREN}, "required": ["children"]}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "number", "exclusiveMinimum": 0},
    {"type": "object", "additionalProperties": {"type": "array"}}, {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}}, "required": ["a", "b"]},
    {"type": "array", "items": {"type": "integer", "multipleOf": 7}, "minItems": 2},
    {"type": "string", "pattern": "^[a-z0-9]+@[a-z]+$"}, {"enum": ["x" * 40, 5, None]},
]  # fmt: skip


def finished(
    compiler: tuple[Tokenizer, GrammarCompiler], schema: dict[str, Any], rng: random.Random, *, within: int | None, draft: bool
) -> str | None:
    """The text of an answer of at most 200 tokens; None if it was cut."""
    tokenizer, grammars = compiler
    spec = StructuredOutputsParams(json=schema, finish_within=within)
    stop = next(iter(tokenizer.eos_token_ids))
    constraint = grammars.compile(spec).start([stop], max_tokens=200)
    output: list[int] = []
    mask: Mask = np.zeros(VOCAB_SIZE // 32 + 1, np.uint32)
    while len(output) < 200:
        constraint.sync(output)
        constraint.fill_mask(mask)
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        others = [i for i in ids if i != stop and not tokenizer.token_bytes(i).startswith((b'"', b"}", b"]"))]
        token_id = rng.choice(others or ids)  # what does not end anything, as long as there is such
        if draft and rng.random() < 0.5:  # one that turns out wrong
            constraint.push_draft(rng.choice(ids))
            constraint.sync(output)
        if token_id != stop:
            constraint.push(token_id)
            output.append(token_id)
        if token_id == stop or constraint.is_complete:
            return tokenizer.decode(output)
    return None


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_answers_end(compiler: tuple[Tokenizer, GrammarCompiler], schema: dict[str, Any]) -> None:
    whole = 0
    for seed in range(5):
        texts = [finished(compiler, schema, random.Random(seed), within=120, draft=draft) for draft in (False, False)]
        assert texts[0] == texts[1], "it is a function of the output alone"
        texts[1] = finished(compiler, schema, random.Random(seed), within=120, draft=True)
        for text in texts:
            if text is not None:
                json.loads(text)
                whole += 1
    assert whole >= 9 if "pattern" not in schema else whole >= 1


def test_without_it_they_do_not(compiler: tuple[Tokenizer, GrammarCompiler]) -> None:
    assert finished(compiler, SCHEMAS[1], random.Random(0), within=None, draft=False) is None


def test_it_is_of_json_only() -> None:
    for form, within in (({"regex": "a"}, 5), ({"json": {}}, 0), ({"json_object": True}, True)):
        with pytest.raises(InvalidRequestError, match="finish_within"):
            StructuredOutputsParams(**form, finish_within=within)  # type: ignore[arg-type]
