"""Bodies of OpenAI requests: every field does something, is known to do nothing, or is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.server.bodies import parse_body
from hotloop.server.fields import CHAT, COMPLETIONS, FIELDS_OF
from hotloop.server.json_body import decode_json
from hotloop.structured_outputs import StructuredOutputsParams

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> Any:
    return parse_body(CHAT, {"model": "m", "messages": MESSAGES, **fields})


def completion(**fields: Any) -> Any:
    return parse_body(COMPLETIONS, {"model": "m", "prompt": "hi", **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.5), ("top_p", 0.5), ("top_k", 5), ("min_p", 0.1), ("repetition_penalty", 1.5),
        ("presence_penalty", 1), ("frequency_penalty", 1), ("n", 2), ("seed", 5), ("min_tokens", 3), ("stop", ["a"]),
        ("stop_token_ids", [3]), ("ignore_eos", True), ("include_stop_str_in_output", True), ("skip_special_tokens", False),
    ],
)  # fmt: skip
def test_sampling_fields_keep_their_names(field: str, value: Any) -> None:
    for parsed in (chat(**{field: value}), completion(**{field: value})):
        assert getattr(parsed.params, field) == value


def test_fields_with_names_of_their_own() -> None:
    assert chat().params.max_tokens is None
    assert completion().params.max_tokens == 16
    assert chat(max_tokens=5).params.max_tokens == chat(max_completion_tokens=5).params.max_tokens == 5
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).params.logprobs == 3
    assert chat(logprobs=False).params.logprobs is None
    assert completion(logprobs=2).params.logprobs == 2
    assert chat(logit_bias={"5": -100}).params.logit_bias == {5: -100.0}


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    of_schema = StructuredOutputsParams(json=schema)
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    for body in (chat(response_format=wrapped), completion(structured_outputs={"json": schema, "regex": None})):
        assert body.params.structured_outputs == of_schema
    assert chat(response_format={"type": "json_object"}).params.structured_outputs == StructuredOutputsParams(json_object=True)
    for body in (chat(response_format={"type": "text"}), chat(structured_outputs=None)):
        assert body.params.structured_outputs is None
    both = chat(response_format=wrapped, structured_outputs={"finish_within": 9, "disable_any_whitespace": None})
    assert both.params.structured_outputs == replace(of_schema, finish_within=9)
    assert both.params.structured_outputs is not None
    assert both.params.structured_outputs.name == "response_format.json_schema.schema"
    spec = chat(structured_outputs={"choice": ["a"], "disable_any_whitespace": True}, response_format={"type": "text"})
    assert spec.params.structured_outputs == StructuredOutputsParams(choice=["a"], disable_any_whitespace=True)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""]), ([""], [""])],
)
def test_one_prompt_or_several(prompt: Any, prompts: list[Any]) -> None:  # known fault B116
    assert list(completion(prompt=prompt).prompts) == prompts


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'"),
        ({"max_token": 1}, "did you mean 'max_tokens'"),
        ({"xyzzy": 1}, "unknown field 'xyzzy'"),
        ({"guided_json": {}}, "unknown field 'guided_json'; it is 'json' of structured_outputs"),
        ({"choice": ["a"]}, "unknown field 'choice'; it is 'choice' of structured_outputs"),
        ({"stream": 1}, "stream is 1"),
        ({"stream_options": {"include_usage": True}}, "without stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options is"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage is 1"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": True}, "timeout_s is True"),
        ({"priority": 2**31}, "priority is"),
        ({"priority": 1.5}, "priority is"),
        ({"priority": True}, "priority is"),
        ({"cache_salt": 5}, "cache_salt is 5"),
        ({"max_tokens": "a"}, "max_tokens is 'a'"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\] is"),
        ({"tools": {}}, "tools is"),
        ({"tools": [TOOL] * 2}, "has the name 'f' of"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice is 'always'"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice names 'g'"),
        ({"tool_choice": "auto"}, "tool_choice is 'auto' without tools"),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls is 'no'"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs has 'messages'"),
        ({"response_format": {"type": "xml"}}, "response_format is"),
        ({"response_format": "json"}, "response_format is"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format is"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format is"),
        ({"response_format": {"type": "json_schema"}}, "must have 'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "must have 'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}}, "must have 'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "strict of response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "json_schema.schema is"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": None}}}, "must have 'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, "json_schema.schema is False"),
        ({"structured_outputs": {"json": False}}, "structured_outputs.json is False"),
        ({"structured_outputs": {"json": False, "regex": "a"}}, "has json and regex"),
        ({"structured_outputs": {"json_object": 0}}, "json_object is 0"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "leave one out"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"finish_within": 0}}, "finish_within is 0"),
        ({"response_format": {"type": "text"}, "structured_outputs": {"finish_within": 5}}, "has nothing"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs is"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "regex and choice"),
        ({"structured_outputs": {}}, "has nothing"),
        ({"structured_outputs": 5}, "structured_outputs is"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"n": 0}, "n is 0"),
        ({"model": 5}, "model is 5"),
        ({"messages": None}, "messages is missing"),
        ({"logprobs": 3}, "logprobs is 3"),
        ({"top_logprobs": 3}, "without logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; it must be an integer from 0 to 20"),
        ({"logprobs": True, "top_logprobs": "5"}, "top_logprobs is '5'"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "give one of them"),
        ({"logit_bias": {"abc": 1}}, "abc"),
    ],
)
def test_what_a_chat_body_may_not_hold(fields: dict[str, Any], message: str) -> None:  # known faults B03, B137
    with pytest.raises(InvalidRequestError, match=message):
        chat(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": None}, "prompt is missing"), ({"prompt": []}, "prompt is"), ({"echo": 1}, "echo is 1"),
        ({"prompt_logprobs": True}, "prompt_logprobs is True"), ({"mirostat": 2, "top_k": 5}, "top_k is 5"),
    ],
)  # fmt: skip
def test_what_a_completion_body_may_not_hold(fields: dict[str, Any], message: str) -> None:  # known faults B19, B21
    with pytest.raises(InvalidRequestError, match=message):
        completion(**fields)


def test_null_is_the_default_and_some_fields_have_no_effect() -> None:
    plain = chat()
    nothing = {"temperature": None, "stop": None, "n": None, "tools": None, "logprobs": None, "response_format": None}
    assert chat(**nothing) == plain
    assert chat(user="me", metadata={"a": 1}, store=True, stream=False) == plain
    assert chat(tools=[], parallel_tool_calls=False).chat.use is None
    for body in (None, [], "x"):
        with pytest.raises(InvalidRequestError, match="must be an object"):
            parse_body(CHAT, body)


def test_what_only_a_server_does() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream=True, stream_options=options, timeout_s=5, priority=-1, cache_salt="a", return_token_ids=True)
    assert (body.stream, body.include_usage, body.continuous_usage, body.return_token_ids) == (True,) * 4
    assert (body.timeout_s, body.priority, body.cache_salt) == (5.0, -1, "a")
    assert completion(echo=True).echo
    assert completion(echo=True).params.prompt_logprobs is None
    assert completion(echo=True, logprobs=3).params.prompt_logprobs == 3
    assert completion(echo=True, logprobs=3, prompt_logprobs=0).params.prompt_logprobs == 0
    for field, value in {"stream": True, "timeout_s": 5, "priority": 0, "cache_salt": "a"}.items():
        with pytest.raises(InvalidRequestError, match=f"{field} is .* only a server"):
            parse_body(CHAT, {"messages": MESSAGES, field: value}, live=False)
    assert not parse_body(CHAT, {"messages": MESSAGES, "stream": False}, live=False).stream


@pytest.mark.parametrize(
    ("asked", "default", "limit", "chat_gets", "completion_gets"),
    [
        (None, None, None, None, 16), (None, 100, None, 100, 100), (None, None, 10, 10, 10), (None, 100, 10, 10, 10),
        (5, 100, 10, 5, 5), (50, 100, 10, 10, 10), (50, None, None, 50, 50),
    ],
)  # fmt: skip
def test_caps_of_max_tokens(
    asked: int | None, default: int | None, limit: int | None, chat_gets: int | None, completion_gets: int
) -> None:
    limits: dict[str, Any] = {"default_max_tokens": default, "max_tokens_limit": limit}
    body = {"messages": MESSAGES, "max_tokens": asked}
    assert parse_body(CHAT, body, **limits).params.max_tokens == chat_gets
    body = {"prompt": "a", "max_tokens": asked}
    assert parse_body(COMPLETIONS, body, **limits).params.max_tokens == completion_gets


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_every_field_is_read_ignored_or_refused(endpoint: Any) -> None:  # known fault B137
    """No field of the table is accepted and dropped by oversight: a value of a wrong type is refused by name, or the
    field is one that says nothing about the answer."""
    needed = {"messages": MESSAGES} if endpoint == CHAT else {"prompt": "a"}
    for name, field in FIELDS_OF[endpoint].items():
        body = needed | {"logprobs": True} if name == "top_logprobs" else needed
        wrong = body | {name: object()}
        if field.kind == "ignored":
            parse_body(endpoint, wrong)
        elif name not in ("messages", "prompt"):
            with pytest.raises(InvalidRequestError, match=rf"\b{name}\b"):
                parse_body(endpoint, wrong)


def test_a_body_of_many_lists_is_refused_unread() -> None:
    assert decode_json(b"[" + b"[]," * 400_000 + b"[]]")
    for many in (b"[]", b"{}"):
        with pytest.raises(InvalidRequestError, match="more than 500000 opening brackets"):
            decode_json(b"[" + many + (b"," + many) * 500_000 + b"]")


def test_a_deep_body_is_refused_whatever_the_stack() -> None:
    assert decode_json(b"[" * 200 + b"]" * 200)
    for levels in (201, 500, *range(900, 1001), 100_000):
        with pytest.raises(InvalidRequestError, match=r"nested on more than 200 levels|not valid JSON"):
            decode_json(b"[" * levels + b"]" * levels)
