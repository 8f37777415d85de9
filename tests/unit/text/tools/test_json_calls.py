"""Reading tool calls out of answers: pieces of any size give the same, and nothing is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.request import AssistantMessage, MessagePart
from hotloop.text.message_parser import merged_parts
from hotloop.text.tools import hermes, llama3_json
from hotloop.text.tools.json_calls import CallSyntax, JsonCallParser

NAMES = frozenset({"f", "get_weather"})
SYNTAXES = {"hermes": hermes.SYNTAX, "llama3-json": llama3_json.SYNTAX}
# What answers are made of, and what comes near to it.
PIECES = [
    "<tool_call>", "</tool_call>", "<tool", "\n", " ", "x", "é", "{", "}", '"', "; ", ";", "<|python_tag|>",
    '{"name": "f", "arguments": ', '{"name": "f", "parameters": ', '{"a": "}\\"</tool_call>", "b": [1, {}]}', "{}",
    '{"type": "function", "name": "f", "parameters": {}}', '{"name": "g", "arguments": {}}', '{"name":"get_weather"',
]  # fmt: skip


def read(syntax: CallSyntax, *pieces: str) -> tuple[list[MessagePart], bool]:
    """The parts of an answer, and whether it is one of calls."""
    parser = JsonCallParser(syntax, NAMES)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged_parts([*parts, *parser.finish()]), parser.has_calls


def message(syntax: CallSyntax, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """content, and name and arguments of each call."""
    whole = AssistantMessage()
    whole.add(read(syntax, text)[0])
    return whole.content, [(call.name, json.loads(call.arguments)) for call in whole.tool_calls]


@given(st.sampled_from(sorted(SYNTAXES)), st.lists(st.sampled_from(PIECES), max_size=10), st.data())
def test_pieces_do_not_matter(name: str, pieces: list[str], data: Any) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(SYNTAXES[name], *split) == read(SYNTAXES[name], text)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x</tool_call>\\"}"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello\n\n", "Hello\n\n", []),
        (CALL, "", [("f", {"a": 'x</tool_call>"}'})]),
        (f"Sure.\n\n{CALL}\n{CALL}", "Sure.", [("f", {"a": 'x</tool_call>"}'})] * 2),
        (f"a{CALL}b", "ab", [("f", {"a": 'x</tool_call>"}'})]),
        ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", {})]),
        ('<tool_call>\n{"type": "function", "name": "f", "arguments": {}}\n</tool_call>', "", [("f", {})]),
        ('<tool_call>\n{"name": "f", "arguments": {}}', "", [("f", {})]),  # the end tag is missing
        ('<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>', None, []),
        ('\n<tool_call>\n{"name": "f", "arguments": []}\n</tool_call>', None, []),
        ("\n<tool_call>\nf(1)\n</tool_call>", None, []),
        ("<tool_call>\n<tool_call>\n" + CALL, "<tool_call>\n<tool_call>", [("f", {"a": 'x</tool_call>"}'})]),
        ("a <tool_call>", None, []),
        ("a <tool_cal", None, []),
    ],
)
def test_hermes(text: str, content: str | None, calls: list[Any]) -> None:
    """content: None is the text."""
    assert message(hermes.SYNTAX, text) == (text if content is None else content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
        ('\n<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})]),
        ('{"type": "function", "name": "f", "parameters": {}}', "", [("f", {})]),
        ('{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"b": 2}}', "",
         [("f", {}), ("get_weather", {"b": 2})]),
        ('{"name": "f", "parameters": {}} I hope so', " I hope so", [("f", {})]),
        ('{"name": "f", "parameters": {}}; so', "; so", [("f", {})]),
        ('It is {"name": "f", "parameters": {}}', None, []),
        ('{"name": "Bob", "age": 3}', None, []),
        (' {"names": []}', None, []),
        ("  ", None, []),
    ],
)  # fmt: skip
def test_llama3_json(text: str, content: str | None, calls: list[Any]) -> None:
    assert message(llama3_json.SYNTAX, text) == (text if content is None else content, calls)


def test_a_call_that_is_cut_short_is_none() -> None:  # known fault B27
    whole = CALL + "\n" + CALL
    for length in range(len(CALL), len(whole) + 1):
        parts, has_calls = read(hermes.SYNTAX, whole[:length])
        begun = [part for part in parts if part.kind == "call"]
        assert has_calls == (len(begun) == 1 or length >= whole.rindex("}") - len('"}}') + 3), whole[:length]


def test_arguments_come_as_they_are_written() -> None:
    parser = JsonCallParser(hermes.SYNTAX, NAMES)
    assert parser.feed('<tool_call>\n{"name": "f", "arguments": ') == []
    assert parser.feed('{"a"') == [MessagePart("call", "f", 0), MessagePart("arguments", '{"a"', 0)]
    assert parser.feed(": 1") == [MessagePart("arguments", ": 1", 0)]
    assert parser.feed("}}\n</tool") == [MessagePart("arguments", "}", 0)]
    assert parser.finish() == []


def test_text_is_held_back_only_while_it_may_become_a_call() -> None:
    parser = JsonCallParser(hermes.SYNTAX, NAMES)
    for piece, certain in (("a <", "a "), ("b", "<b"), ("\n", ""), ("\n<tool", ""), ("_x", "\n\n<tool_x")):
        assert "".join(part.text for part in parser.feed(piece)) == certain
    parser = JsonCallParser(llama3_json.SYNTAX, NAMES)
    for piece, certain in ((" {", ""), ('"x', ' {"x'), ('{"name":', '{"name":')):
        assert "".join(part.text for part in parser.feed(piece)) == certain
