"""What OpenAI's fields about tools say, and what is refused."""

import json
from types import MappingProxyType
from typing import Any

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.text.tools.messages import with_call_objects
from hotloop.text.tools.use import ToolUse, tool_use

NESTED: dict[str, Any] = {}
for _ in range(200):
    NESTED = {"items": NESTED}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def used(*args: Any) -> ToolUse:
    use = tool_use(*args)
    assert use is not None
    return use


def test_choices() -> None:
    tools = [tool("f"), tool("g")]
    assert tool_use(None) is tool_use([]) is tool_use(tools, "none") is None
    for choice in (None, "auto"):
        use = used(tools, choice)
        assert (use.names, use.must, use.many) == ({"f", "g"}, False, True)
    assert used(tools, "required").must
    assert not used(tools, "auto", False).many
    named = used(tools, {"type": "function", "function": {"name": "g"}})
    assert (named.names, named.must, named.many) == ({"g"}, True, False)


def test_schemas_are_of_objects() -> None:
    def schema(**function: Any) -> Any:
        return json.loads(used([tool(**function)]).tools[0].schema)

    assert schema() == {"type": "object", "properties": {}, "additionalProperties": False}
    assert schema(parameters={}) == {"type": "object"}
    given = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
    assert schema(parameters=given, strict=True, description="d") == given
    assert schema(parameters={"properties": {"a": {}}}) == {"properties": {"a": {}}, "type": "object"}


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ("f", None, "tools is 'f'"),
        ({"a": 1}, None, "tools is"),
        ([tool()] * 129, None, "tools has 129 tools; 128 at most"),
        (["f"], None, r"tools\[0\] is 'f'"),
        ([{"type": "web_search"}], None, r"tools\[0\] is .*web_search"),
        ([tool(), {"type": "function"}], None, r"tools\[1\] is"),
        ([tool(arguments={})], None, r"tools\[0\].function has 'arguments'"),
        ([tool("a b")], None, r"tools\[0\].function.name is 'a b'"),
        ([tool("é")], None, "name is 'é'"),
        ([tool("x" * 65)], None, "name is"),
        ([tool(5)], None, "name is 5"),  # type: ignore[arg-type]
        ([tool(), tool("g"), tool()], None, r"tools\[2\] has the name 'f' of tools\[0\]"),
        ([tool(description=1)], None, "description is 1"),
        ([tool(strict=1)], None, "strict is 1"),
        ([tool(parameters=[])], None, r"parameters is \[\]"),
        ([tool(parameters={"type": "string"})], None, "parameters.type is 'string'"),
        ([tool(parameters={"a": float("nan")})], None, "is no JSON schema"),
        ([tool(parameters=MappingProxyType({}))], None, "is no JSON schema"),
        ([{"type": "function", "function": MappingProxyType({"name": "f"})}], None, "function is a mappingproxy"),
        ([tool(parameters=NESTED)], None, "nested on more than 200 levels"),
        ([tool(parameters={"a": "x" * 70_000})], None, "characters; 65536 at most"),
        ([tool()], "maybe", "tool_choice is 'maybe'"),
        ([tool()], {"type": "function"}, "tool_choice is"),
        ([tool()], {"type": "function", "function": {"name": "g"}}, "tool_choice names 'g'; tools has 'f'"),
        ([tool()], {"type": "allowed_tools"}, "tool_choice is"),
        (None, "auto", "tool_choice is 'auto' without tools"),
        ([], "required", "tool_choice is 'required' without tools"),
    ],
)
def test_what_is_refused(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        tool_use(tools, choice)


def test_arguments_of_earlier_calls_become_objects() -> None:
    def call(arguments: Any) -> list[dict[str, Any]]:
        function = {"name": "f", "arguments": arguments}
        return [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}]

    for arguments in ('{"a": 1}', {"a": 1}):
        (message,) = with_call_objects(call(arguments))
        assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    for nothing in ("", " \n", None, {}):
        assert with_call_objects(call(nothing))[0]["tool_calls"][0]["function"]["arguments"] == {}
    for arguments in (NESTED, json.dumps(NESTED)):  # one encoder takes it, the next one might not
        with pytest.raises(InvalidRequestError, match=r"messages\[0\].tool_calls\[0\].function.arguments is nested"):
            with_call_objects(call(arguments))
    no_json = ('{"a": NaN}', '{"a": [-Infinity]}', '{"a": 1e999}', {"a": float("nan")})
    for arguments in (
        '{"a": ', "[1]", 5, "[" * 100_000, {"a": b"b"}, {(1, 2): 3}, MappingProxyType({"a": 1}), *no_json, [], False, 0, "null",
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match=r"messages\[0\].tool_calls\[0\].function.arguments is"):
            with_call_objects(call(arguments))
    for calls in ("f", ["f"], [{"function": {}}]):
        with pytest.raises(InvalidRequestError, match=r"messages\[0\].tool_calls"):
            with_call_objects([{"role": "assistant", "content": None, "tool_calls": calls}])
    with pytest.raises(InvalidRequestError, match="of an assistant message"):
        with_call_objects([{"role": "user", "content": "a", "tool_calls": call("")[0]["tool_calls"]}])
    (message,) = with_call_objects([{"role": "assistant", "content": "a", "reasoning": "b"}])
    assert message["reasoning_content"] == "b"
