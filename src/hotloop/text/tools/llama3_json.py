"""Llama 3: the answer is {"name": ..., "parameters": {...}} and nothing else, after <|python_tag|> or without it."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.structured_outputs import CallsForm, Trigger
from hotloop.text.tools.format import CallParser, Conversation, Tools
from hotloop.text.tools.json_calls import CallSyntax, JsonCallParser
from hotloop.text.tools.use import ToolUse

PYTHON_TAG = "<|python_tag|>"
_START = '{"name":'
SYNTAX = CallSyntax(
    key="parameters",
    opening=(),
    closing=(),
    separator="; ",
    triggers=(Trigger(PYTHON_TAG, ""), Trigger(_START, _START), Trigger('{"type": "function", "name":', _START)),
    at_start=True,
)


class Llama3Json:
    name = "llama3-json"
    markers: Sequence[str] = (PYTHON_TAG,)

    def fits(self, template_source: str) -> bool:
        return "tools" in template_source and '"parameters"' in template_source and "<|start_header_id|>" in template_source

    def conversations(self, messages: Conversation, tools: Tools | None) -> Sequence[tuple[Conversation, Tools | None]]:
        return [(messages, tools)]

    def form(self, use: ToolUse) -> CallsForm:
        return SYNTAX.form(use)

    def parser(self, use: ToolUse) -> CallParser:
        return JsonCallParser(SYNTAX, use.names)
