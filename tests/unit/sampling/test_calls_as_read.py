"""What the constraint of an answer allows against what its readers see in it: every call keeps to its schema."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hotloop.request import AssistantMessage, Thinking
from hotloop.sampling.constraint import Constraint
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.structured_outputs import StructuredOutputsParams
from hotloop.text.message_parser import MessageForm, MessageParser
from hotloop.text.output_processor import OutputProcessor
from hotloop.text.tokenizer import Tokenizer
from hotloop.text.tools.formats import FORMATS
from hotloop.text.tools.use import tool_use
from tiny_tokenizer import tokenizer_metadata

VOCAB_SIZE, STOP, HIDDEN, MAX_TOKENS = 330, 266, 265, 50
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"]
PARTS = [
    "<tool", "_call>", "<tool_", "call>\n", "l>\n{", 'l>\n{"', "</thi", "nk>", "nk>\n", "nk>\n<tool_call>", '{"name', '":',
    '{"name":', "; {", "\n<tool", "_call>\n{", " {",
]  # fmt: skip
LIKELY = [
    '<tool_call>\n{"name": "f", "arguments": {', '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "<think>",
    '{"name": "f", "parameters": {', "</think>", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g"',
]  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False,
    }}},
    {"type": "function", "function": {"name": "g"}},
]  # fmt: skip
MEANT = {"f": ['{"a":1}', '{"a":2}'], "g": ["{}"]}


def tokenizer_of(*, control: bool) -> Tokenizer:
    """Bytes, markers (control tokens or none) and tokens that are parts of them."""
    metadata = tokenizer_metadata(VOCAB_SIZE)
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), np.array(metadata["tokenizer.ggml.token_type"])  # type: ignore[arg-type]
    for i, text in enumerate([*MARKERS, *PARTS], 275):
        tokens[i], types[i] = text.replace("\n", "Ċ").replace(" ", "Ġ"), 3 if control and text in MARKERS else 1
    return Tokenizer.from_metadata(
        {**metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types.astype(np.int32)}
    )


def spelled(texts: Sequence[str], text: str, rng: random.Random) -> list[int]:
    """A text in any tokens, now and then with one between them that readers do not see."""
    ids: list[int] = []
    while text:
        ids.append(rng.choice([i for i, part in enumerate(texts) if part and text.startswith(part)]))
        text = text[len(texts[ids[-1]]) :]
        if rng.random() < 0.15:
            ids.append(HIDDEN)
    return ids


def drawn(constraint: Constraint, texts: Sequence[str], rng: random.Random) -> list[int]:
    """An answer of tokens that are allowed, with a liking for what begins calls and thinking."""
    output: list[int] = []
    wished: list[int] = []
    while len(output) < MAX_TOKENS and not constraint.is_complete:
        mask = np.full(VOCAB_SIZE // 32 + 1, 0xFFFFFFFF, np.uint32)
        constraint.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist()
        if not wished and rng.random() < 0.5:
            wished = spelled(texts, rng.choice(LIKELY), rng)
        token_id = wished.pop(0) if wished else rng.choice(allowed)
        if token_id not in allowed:
            wished, token_id = [], rng.choice(allowed)
        if token_id == STOP:
            break
        constraint.push(token_id)
        output.append(token_id)
    return output


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_calls_keep_to_their_schemas(tool_format: Any, control: bool) -> None:
    tokenizer = tokenizer_of(control=control)
    compiler = GrammarCompiler(lambda: tokenizer)
    rng = random.Random(1)
    begin, end = (tuple(tokenizer.encode(text, add_special=False, parse_special=True)) for text in ("<think>", "</think>"))
    texts = [tokenizer.token_bytes(i).decode("latin-1") for i in range(VOCAB_SIZE)]
    num_calls = 0
    for _ in range(40):
        use = tool_use(TOOLS, rng.choice([None, "required"]), rng.choice([None, False]))
        assert use is not None
        thinking = rng.choice([None, Thinking(begin, end, is_open=True), Thinking(begin, end, is_open=False)])
        skips = rng.random() < 0.7
        calls = tool_format.form(use)
        form = compiler.compile(StructuredOutputsParams(calls=calls, disable_any_whitespace=True))
        markers = [*form.markers, *(() if thinking is None else (thinking.begin, thinking.end))]
        shown = compiler.token_index().shown(markers, shows_control=not skips)
        output = drawn(form.start([STOP], thinking, MAX_TOKENS, shown), texts, rng)

        visible = frozenset(i for i in map(tokenizer.token_id, markers) if i is not None)
        processor = OutputProcessor(tokenizer, skip_special_tokens=skips, visible_ids=visible)
        parser, message = MessageParser(MessageForm(thinking, use, tool_format, visible), str), AssistantMessage()
        for token_id in output:
            message.add(parser.feed(processor.push([token_id]).text))
        message.add([*parser.feed(processor.finish("length").text), *parser.finish()])
        for number, call in enumerate(message.tool_calls, start=1):
            num_calls += 1
            is_cut = number == len(message.tool_calls) and len(output) == MAX_TOKENS
            assert any(m == call.arguments or (is_cut and m.startswith(call.arguments)) for m in MEANT[call.name]), message
            assert is_cut or json.loads(call.arguments) is not None
    assert num_calls > 5
