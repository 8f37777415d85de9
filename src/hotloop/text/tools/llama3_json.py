"""Llama 3: the answer is {"name": ..., "parameters": {...}} and nothing else, after <|python_tag|> or without it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hotloop.structured_outputs import CallsForm, Trigger
from hotloop.text.chat_template import asks_for
from hotloop.text.tools.format import CallParser, Conversation, Tools
from hotloop.text.tools.json_calls import CallSyntax, JsonCallParser
from hotloop.text.tools.use import ToolUse

PYTHON_TAG = "<|python_tag|>"
_PARAMETERS = re.compile(r"""["']parameters\\?["']""")
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

    def fits(self, template_source: str) -> bool:
        is_llama = "<|start_header_id|>" in template_source and _PARAMETERS.search(template_source) is not None
        return is_llama and asks_for(template_source, "tools")

    def conversations(self, messages: Conversation, tools: Tools | None) -> Sequence[tuple[Conversation, Tools | None]]:
        return [(messages, tools)]

    def form(self, use: ToolUse) -> CallsForm:
        return SYNTAX.form(use)

    def parser(self, use: ToolUse) -> CallParser:
        return JsonCallParser(SYNTAX, use.names)
