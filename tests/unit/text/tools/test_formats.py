"""Which format a chat template asks for, and what the generic one shows to templates that know no tools."""

from typing import Any

import pytest

from chat_templates import TEMPLATES
from hotloop.errors import InvalidRequestError
from hotloop.text.tools.formats import FORMATS, format_for

TOOL = {"type": "function", "function": {"name": "f", "description": "Does 'f'", "parameters": {"type": "object"}}}
LLAMA3 = (
    "{% if tools %}Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}."
    "{% endif %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}{% endfor %}"
)


def test_detection() -> None:
    assert format_for(TEMPLATES["tools"]).name == "hermes"
    assert format_for(LLAMA3).name == "llama3-json"
    for name in ("chatml", "llama2", "llama3", "gemma", "zephyr", "phi", "thinking"):
        assert format_for(TEMPLATES[name]).name == "generic"
    no_use = TEMPLATES["tools"].replace("if tools", "if xml_tools").replace("in tools", "in xml_tools")
    other_calls = TEMPLATES["tools"].replace("'arguments':", "'args':")
    for source in (no_use, other_calls, TEMPLATES["tools"] + "{% if %}"):
        assert "<tool_call>" in source
        assert format_for(source).name == "generic"
    renamed = "{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}"
    assert format_for(renamed + "{% if not tools is defined %}{% set tools = none %}{% endif %}" + LLAMA3).name == "llama3-json"
    for format in FORMATS:
        assert format_for(TEMPLATES["chatml"], format.name) is format
    with pytest.raises(InvalidRequestError, match="tool_format is 'xml'; it must be one of hermes, llama3-json, generic"):
        format_for("", "xml")


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def test_the_generic_format_writes_calls_and_results_as_texts() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call("f", {"a": "é"}), call("f", {})]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "ok"},
    ]
    ((shown, tools),) = format_for("").conversations(messages, None)
    assert tools is None
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
    assert shown[1]["content"] == (
        '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    )
    assert shown[2]["content"] == "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    assert messages[1]["tool_calls"], "the request was changed"


def test_the_generic_format_explains_tools() -> None:
    user = {"role": "user", "content": "hi"}
    (as_system, as_user) = format_for("").conversations([user], [TOOL])
    explanation = as_system[0][0]["content"]
    assert as_system[0][0]["role"] == "system"
    assert "\"name\": \"f\", \"description\": \"Does 'f'\"" in explanation
    assert "<tool_call>\n{\"name\": \"NAME\"" in explanation
    assert as_user[0] == [{"role": "user", "content": explanation + "\n\nhi"}]
    (only,) = format_for("").conversations([{"role": "system", "content": "Be brief."}, user], [TOOL])
    assert only[0][0]["content"] == "Be brief.\n\n" + explanation
