"""Messages of a conversation with tools as chat templates take them: calls and their arguments as objects."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.errors import InvalidRequestError
from hotloop.nesting import MAX_LEVELS, is_too_deep


def with_call_objects(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """messages: plain (`plain_messages`). OpenAI's clients write the arguments of a call as JSON text; templates want the
    object. The reasoning of an answer goes by the name that templates know, reasoning_content.

    Raises: InvalidRequestError naming the message and field.
    """
    return [_with_objects(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _with_objects(where: str, message: dict[str, Any]) -> dict[str, Any]:
    if message.get("reasoning") is not None and message.get("reasoning_content") is None:
        message = {**message, "reasoning_content": message["reasoning"]}
    calls = message.get("tool_calls")
    if not calls:
        return message
    if message["role"] != "assistant" or isinstance(calls, str) or not isinstance(calls, Sequence):
        raise InvalidRequestError(f"{where}.tool_calls is {calls!r:.60}; it must be a list of calls, of an assistant message")
    return {**message, "tool_calls": [_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]}


def _call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            f"{where} is {call!r:.80}; it must be "
            "{'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': ...}}"
        )
    arguments = given = function.get("arguments")
    try:
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        elif isinstance(arguments, str):
            arguments = json.loads(arguments)
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if arguments is not None and is_too_deep(arguments):
        raise InvalidRequestError(f"{where}.function.arguments is nested on more than {MAX_LEVELS} levels")
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError(f"{where}.function.arguments is {reprlib.repr(given):.60}; it must be a JSON object")
    return {**call, "function": {**function, "arguments": dict(arguments)}}
