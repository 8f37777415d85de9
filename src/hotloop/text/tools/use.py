"""ToolUse: the tools of a conversation and what its answers may do with them, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotloop.errors import InvalidRequestError
from hotloop.nesting import MAX_LEVELS, is_too_deep

MAX_TOOLS = 128
MAX_NAME_CHARS = 64
MAX_SCHEMA_CHARS = 1 << 16  # of all tools together: every choice of a request takes them to the engine

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_CHOICES = "'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}"


@dataclass(frozen=True, slots=True)
class Tool:
    """schema: of its arguments, the JSON text of an object's. called: that schema, in messages."""

    name: str
    schema: str
    called: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: those that may be called. must: the answer is a call. many: it may be several."""

    tools: tuple[Tool, ...]
    must: bool = False
    many: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


def tool_use(tools: object, tool_choice: object = None, parallel_tool_calls: object = None) -> ToolUse | None:
    """What OpenAI's fields of these names say; None if there is nothing to call.

    Raises: InvalidRequestError naming the field, its value and what is allowed.
    """
    if not isinstance(parallel_tool_calls, bool | None):
        raise InvalidRequestError(f"parallel_tool_calls is {parallel_tool_calls!r:.60}; it must be true or false")
    many = parallel_tool_calls is not False
    if tools is not None and (isinstance(tools, str) or not isinstance(tools, Sequence)):
        raise InvalidRequestError(f"tools is {tools!r:.60}; it must be a list of tools")
    if not tools:
        if tool_choice is not None:
            raise InvalidRequestError(f"tool_choice is {tool_choice!r:.60} without tools; give tools or leave it out")
        return None
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools has {len(tools)} tools; {MAX_TOOLS} at most")
    checked = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    names = [tool.name for tool in checked]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(f"tools[{index}] has the name {name!r} of tools[{names.index(name)}]; names must differ")
    num_chars = sum(len(tool.schema) for tool in checked)
    if num_chars > MAX_SCHEMA_CHARS:
        raise InvalidRequestError(f"the parameters of tools have {num_chars} characters; {MAX_SCHEMA_CHARS} at most")
    if tool_choice is None or isinstance(tool_choice, str):
        if tool_choice in (None, "auto", "required"):
            return ToolUse(checked, tool_choice == "required", many)
        if tool_choice == "none":
            return None
    name = _named(tool_choice)
    if name not in names:
        raise InvalidRequestError(f"tool_choice names {name!r:.80}; tools has {', '.join(map(repr, names))[:200]}")
    return ToolUse((checked[names.index(name)],), must=True, many=False)


def _named(tool_choice: object) -> str:
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function" or not isinstance(name, str):
        raise InvalidRequestError(f"tool_choice is {tool_choice!r:.80}; it must be {_CHOICES}")
    return name


def _tool(where: str, tool: object) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        raise InvalidRequestError(
            f"{where} is {tool!r:.80}; it must be {{'type': 'function', 'function': {{'name': ..., 'parameters': {{...}}}}}}"
        )
    function = tool["function"]
    if not isinstance(function, dict):
        raise InvalidRequestError(f"{where}.function is a {type(function).__name__}; it must be a dict")
    unknown = [name for name in function if name not in _FUNCTION_FIELDS]
    if unknown:
        raise InvalidRequestError(f"{where}.function has {unknown[0]!r:.60}; it may hold {', '.join(_FUNCTION_FIELDS)}")
    name, description, strict = (function.get(field) for field in ("name", "description", "strict"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.function.name is {name!r:.80}; it must be 1 to {MAX_NAME_CHARS} of a-z, A-Z, 0-9, _ and -"
        )
    if not isinstance(description, str | None):
        raise InvalidRequestError(f"{where}.function.description is {description!r:.60}; it must be a string")
    if not isinstance(strict, bool | None):
        raise InvalidRequestError(f"{where}.function.strict is {strict!r:.60}; it must be true or false")
    parameters = f"{where}.function.parameters"
    return Tool(name, _schema(parameters, function.get("parameters")), parameters)


def _schema(where: str, parameters: object) -> str:
    """Of an object, which arguments always are. None: of one without properties."""
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError(f"{where} is {parameters!r:.60}; it must be a JSON schema: an object")
    kind = parameters.get("type", "object")
    if kind != "object":
        raise InvalidRequestError(f"{where}.type is {kind!r:.60}; arguments are an object, so it must be 'object'")
    try:
        json.dumps(parameters)  # a mapping of a kind of its own is none to templates either
        schema = json.dumps({**parameters, "type": "object"}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is no JSON schema: {error}") from None
    if is_too_deep(parameters):
        raise InvalidRequestError(f"{where} is nested on more than {MAX_LEVELS} levels; simplify it")
    return schema
