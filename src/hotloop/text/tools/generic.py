"""For models whose chat template knows no tools, or writes calls as nothing here reads: a system message explains both, and
calls of earlier turns and their results become texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.structured_outputs import CallsForm
from hotloop.text.tools.format import CallParser, Conversation, Tools
from hotloop.text.tools.hermes import SYNTAX
from hotloop.text.tools.json_calls import JsonCallParser
from hotloop.text.tools.use import ToolUse

_INTRODUCTION = "You can call these tools:"
_HOW = "To call a tool, write its name and its arguments, a JSON object of its parameters, in this form:"
_AFTER = "The results come in the next message. Call a tool only if it helps; otherwise answer as usual."


class Generic:
    name = "generic"

    def fits(self, template_source: str) -> bool:
        return True

    def conversations(self, messages: Conversation, tools: Tools | None) -> Sequence[tuple[Conversation, Tools | None]]:
        plain: list[dict[str, Any]] = []
        for message in messages:
            previous = plain[-1] if plain else None
            if message["role"] != "tool":
                plain.append(_as_text(message))
                continue
            response = f"<tool_response>\n{message['content']}\n</tool_response>"
            if previous is not None and previous["role"] == "user" and previous["content"].endswith("</tool_response>"):
                previous["content"] += "\n" + response
            else:
                plain.append({"role": "user", "content": response})
        if not tools:
            return [(plain, None)]
        explanation = _explanation(tools)
        if plain[0]["role"] == "system":
            return [([_led_by(explanation, plain[0], at_end=True), *plain[1:]], None)]
        ways: list[tuple[Conversation, Tools | None]] = [([{"role": "system", "content": explanation}, *plain], None)]
        if plain[0]["role"] == "user":  # some templates know no system
            ways.append(([_led_by(explanation, plain[0]), *plain[1:]], None))
        return ways

    def form(self, use: ToolUse) -> CallsForm:
        return SYNTAX.form(use)

    def parser(self, use: ToolUse) -> CallParser:
        return JsonCallParser(SYNTAX, use.names)


def _led_by(explanation: str, message: Mapping[str, Any], *, at_end: bool = False) -> dict[str, Any]:
    texts = [message["content"], explanation] if at_end else [explanation, message["content"]]
    return {**message, "content": "\n\n".join(texts)}


def _explanation(tools: Tools) -> str:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    example = SYNTAX.example("NAME", "{...}")
    return "\n".join((_INTRODUCTION, *functions, "", _HOW, example, "", _AFTER))


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if not calls:
        return plain
    texts = [
        SYNTAX.example(call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))
        for call in calls
    ]
    return {**plain, "content": "\n".join(([plain["content"]] if plain.get("content") else []) + texts)}
