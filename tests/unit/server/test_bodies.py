"""Bodies of OpenAI requests: every field does something, is known to do nothing, or is refused by name."""

from typing import Any

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.server.bodies import Endpoint, parse_body

CHAT: Endpoint = "/v1/chat/completions"
COMPLETION: Endpoint = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Any:
    return parse_body(CHAT, {"model": "m", "messages": MESSAGES, **fields})


def completion(**fields: Any) -> Any:
    return parse_body(COMPLETION, {"model": "m", "prompt": "hi", **fields})


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
        ({"stream": True}, "stream is True"),
        ({"tools": [{"type": "function"}]}, "tools is"),
        ({"response_format": {"type": "json_object"}}, "response_format is"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"n": 0}, "n is 0"),
        ({"model": 5}, "model is 5"),
        ({"messages": None}, "messages is missing"),
        ({"logprobs": 3}, "logprobs is 3"),
        ({"top_logprobs": 3}, "without logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs is 21"),
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
        ({"prompt": None}, "prompt is missing"), ({"prompt": []}, "prompt is"), ({"echo": True}, "echo"),
        ({"echo": True, "logprobs": 1}, "echo"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)  # fmt: skip
def test_what_a_completion_body_may_not_hold(fields: dict[str, Any], message: str) -> None:  # known faults B19, B21
    with pytest.raises(InvalidRequestError, match=message):
        completion(**fields)


def test_null_is_the_default_and_some_fields_have_no_effect() -> None:
    plain = chat()
    nothing = {"temperature": None, "stop": None, "n": None, "tools": None, "logprobs": None, "response_format": None}
    assert chat(**nothing) == plain
    assert chat(user="me", metadata={"a": 1}, store=True, stream=False, tool_choice="none") == plain
    for body in (None, [], "x"):
        with pytest.raises(InvalidRequestError, match="must be an object"):
            parse_body(CHAT, body)
