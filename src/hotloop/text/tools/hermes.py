"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as often as needed, within free text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hotloop.structured_outputs import CallsForm, Trigger
from hotloop.text.chat_template import asks_for
from hotloop.text.tools.format import CallParser, Conversation, Tools
from hotloop.text.tools.json_calls import CallSyntax, JsonCallParser
from hotloop.text.tools.use import ToolUse

SYNTAX = CallSyntax(
    key="arguments",
    opening=("<tool_call>", "\n"),
    closing=("\n", "</tool_call>"),
    separator="\n",
    triggers=(Trigger("<tool_call>", "<tool_call>"),),
)
# Others (GLM 4.5, Qwen 3 Coder) write no JSON between the same tags.
_ARGUMENTS = re.compile(r"""["']arguments\\?["']""")


class Hermes:
    name = "hermes"

    def fits(self, template_source: str) -> bool:
        is_json = "<tool_call>" in template_source and _ARGUMENTS.search(template_source) is not None
        return is_json and asks_for(template_source, "tools")

    def conversations(self, messages: Conversation, tools: Tools | None) -> Sequence[tuple[Conversation, Tools | None]]:
        return [(messages, tools)]

    def form(self, use: ToolUse) -> CallsForm:
        return SYNTAX.form(use)

    def parser(self, use: ToolUse) -> CallParser:
        return JsonCallParser(SYNTAX, use.names)
