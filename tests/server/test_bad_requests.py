"""Whatever a client sends, it gets a status of the 4xx and a short error object, and the server goes on."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.server.fields import CHAT, COMPLETIONS, FIELDS, FIELDS_OF
from server.serving import stream, strict_json

MESSAGES = [{"role": "user", "content": "hi"}]
JSON = {"content-type": "application/json"}


def check_refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert len(response.content) < 16_000
    error: dict[str, Any] = strict_json(response.content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.fixture(autouse=True)
def still_serves(client: httpx.Client) -> Any:
    yield
    response = client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 3})
    assert response.json()["choices"][0]["text"] == "def"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"123", b'"str"', b"{", b'{"prompt": "a", "max_tok', b"\xff\xfe", b"[" * 100_000,
        b'{"a":' * 50_000, b"{}", b'{"prompt": NaN}', b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "top_p": NaN}', b'{"prompt": "a", "logit_bias": {"5": NaN}}', b'{"prompt": "a", "timeout_s": 1e999}',
        b"{}{}", b'{"prompt": ' + b"1" * 5000 + b"}", b'{"nonsense": 1}',
        b'{"messages": "hi"}', b'{"messages": 5}', b'{"prompt": {}}', b'{"tokens": "a"}', b'{"tokens": [1.5]}',
    ],
)  # fmt: skip
def test_bodies_that_are_no_requests(client: httpx.Client, path: str, body: bytes) -> None:  # known fault B76
    check_refused(client.post(path, content=body, headers=JSON))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", None])
def test_other_media_types(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    error = check_refused(client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers), 415)
    assert error["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"])
def test_media_types_of_json(client: httpx.Client, kind: str) -> None:
    assert client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""}, {"prompt": []}, {"prompt": [""]}, {"prompt": ["a", ""]}, {"prompt": [[]]}, {"prompt": None},
        {"prompt": [5000]}, {"prompt": [-1]}, {"prompt": [2**63]}, {"prompt": [10**40]}, {"prompt": [1.5]},
        {"prompt": [True]}, {"prompt": [["a"]]}, {"prompt": [{"prompt": "a"}]}, {"prompt": ["a", 5]},
        {"prompt": {"prompt_token_ids": [5]}},
        {"logit_bias": {"999999": 5}}, {"logit_bias": {"-1": 5}}, {"logit_bias": {"abc": 5}}, {"logit_bias": {"5": 101}},
        {"logit_bias": [5]}, {"logit_bias": {"5": "x"}},
        {"stop": ""}, {"stop": ["", "x"]}, {"stop": 5}, {"stop": [5]}, {"stop": ["a"] * 17}, {"stop": {"a": 1}},
        {"stop_token_ids": {"5": 1}}, {"stop_token_ids": ""}, {"stop_token_ids": {}}, {"timeout_s": 0}, {"priority": 1e3},
        {"echo": 1}, {"stop_token_ids": [10**6]}, {"stop_token_ids": [-1]}, {"stop_token_ids": 5}, {"stop_token_ids": ["a"]},
        {"temperature": -0.1}, {"temperature": "hot"}, {"temperature": True}, {"temperature": [1]},
        {"top_p": 0}, {"top_p": 1.0001}, {"top_p": -1}, {"min_p": -0.1}, {"min_p": 1.1}, {"top_k": -2}, {"top_k": 1.5},
        {"repetition_penalty": 0}, {"repetition_penalty": -1}, {"presence_penalty": 2.1}, {"frequency_penalty": -2.1},
        {"n": 0}, {"n": 129}, {"n": "2"}, {"seed": 2**64}, {"seed": -(2**63) - 1}, {"seed": 1.5}, {"seed": 10**4000},
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": "a"}, {"max_tokens": 1e3},
        {"min_tokens": -1}, {"min_tokens": 17}, {"min_tokens": 10**30}, {"top_k": 10**30}, {"priority": 10**30},
        {"logprobs": 21}, {"logprobs": -1}, {"logprobs": True, "echo": True}, {"prompt_logprobs": 21},
        {"typical_p": 0}, {"top_n_sigma": -2}, {"xtc_threshold": 2}, {"mirostat": 1}, {"mirostat": 2, "top_p": 0.5},
        {"dry_base": 0.5}, {"dry_sequence_breakers": ":"}, {"allowed_token_ids": []}, {"allowed_token_ids": [10**6]},
        {"bad_words": [""]}, {"logprobs_mode": "x"},
        {"best_of": 2}, {"suffix": "b"}, {"response_format": {"type": "xml"}},
        {"response_format": {"schema": {}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "(["}},
        {"structured_outputs": {"grammar": "root ::= x"}}, {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"json": {"multipleOf": 999983}}},
        {"tools": [{}]}, {"timeout_s": -1}, {"timeout_s": "5"}, {"cache_salt": 5},
        {"stream": "yes"}, {"stream": True, "stream_options": 5},
        {"stream": True, "stream_options": {"x": 1}}, {"model": 5}, {"temprature": 1}, {"x" * 100_000: 1},
        {"temperature": "x" * 100_000}, {"stop": [["x" * 100_000]]}, {"cache_salt": ["x" * 100_000]},
        {"messages": MESSAGES},
    ],
    ids=lambda fields: str(fields)[:60],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_fields_of_completions(
    client: httpx.Client, fields: dict[str, Any], stream: bool
) -> None:  # known faults B02, B03, B25, B39, B41, B105, B131, B137
    check_refused(client.post(COMPLETIONS, json={"prompt": "abc", "stream": stream, **fields}))


@pytest.mark.parametrize(
    "messages",
    [
        [], "hi", {"role": "user"}, [5], ["hi"], [None], [{}], [{"content": "hi"}], [{"role": 5, "content": "hi"}],
        [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [5]}], [{"role": "user", "content": {"a": 1}}], [{"role": 1}] * 10_000,
        [{"role": "user", "content": "x" * 1_000_000}],
    ],
    ids=lambda messages: str(messages)[:60],
)  # fmt: skip
def test_messages(client: httpx.Client, messages: Any) -> None:  # known faults B39, B76, B77, B108, B110
    check_refused(client.post(CHAT, json={"messages": messages}))


def test_text_parts_are_one_text(client: httpx.Client) -> None:  # known fault B110
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    ids = [
        client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        for messages in (parts, [{"role": "user", "content": "a\nb"}])
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(("num_tokens", "status"), [(2047, 200), (2048, 400), (2049, 400), (30_000, 400)])
@pytest.mark.parametrize("max_tokens", [None, 1, 500])
def test_prompts_at_the_end_of_the_context(
    client: httpx.Client, num_tokens: int, status: int, max_tokens: int | None
) -> None:  # known faults B42, B43, B126
    body = {"prompt": [97] * num_tokens, "max_tokens": max_tokens, "ignore_eos": True}
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == status
    if status == 200:
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == response.json()["usage"]["max_tokens"] == 1
    else:
        error = check_refused(response)
        assert error["code"] == "context_length_exceeded"
        assert str(num_tokens) in error["message"]
        assert "2048" in error["message"]


def test_a_prompt_is_truncated_only_where_that_is_asked_for(client: httpx.Client) -> None:  # known fault B126
    body = {"prompt": ["x" * 3000 + "abc", [97] * 10], "truncate_prompt_tokens": 20, "max_tokens": 2, "echo": True}
    answer = client.post(COMPLETIONS, json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["x" * 17 + "abcde", "a" * 10 + "bc"]
    assert answer["usage"]["prompt_tokens"] == 30
    assert answer["usage"]["prompt_tokens_details"]["truncated_tokens"] == 2983
    (*_, last) = stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert last["usage"]["prompt_tokens_details"]["truncated_tokens"] == 2983
    chat = {"messages": [{"role": "user", "content": "x" * 3000}], "max_tokens": 2}
    check_refused(client.post(CHAT, json=chat))
    answer = client.post(CHAT, json={**chat, "truncate_prompt_tokens": 30}).json()
    assert answer["usage"]["prompt_tokens"] == 30
    assert answer["usage"]["prompt_tokens_details"]["truncated_tokens"] > 2900
    (answer,) = [client.post(COMPLETIONS, json={"prompt": "x" * 3000, "truncate_prompt_tokens": -1}).json()]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2047, 1)
    for last_ones in (0, -2, 1.5):
        for path, of_path in ((COMPLETIONS, body), (CHAT, chat)):
            check_refused(client.post(path, json={**of_path, "truncate_prompt_tokens": last_ones}))
    too_long = {"prompt": "x" * 1_000_001, "truncate_prompt_tokens": 5}
    assert "1000001" in check_refused(client.post(COMPLETIONS, json=too_long))["message"]


def test_a_generation_without_max_tokens_ends_with_the_context(client: httpx.Client) -> None:  # known fault B43
    body = {"messages": MESSAGES, "ignore_eos": True}
    answer = client.post(CHAT, json=body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048


def test_too_many_choices(client: httpx.Client) -> None:
    assert "choices" in check_refused(client.post(COMPLETIONS, json={"prompt": ["a"] * 3, "n": 100}))["message"]
    assert client.post(COMPLETIONS, json={"prompt": ["a"] * 2, "n": 100, "max_tokens": 1}).status_code == 200


def test_logprobs_of_a_prompt_in_every_choice_may_be_too_much(client: httpx.Client) -> None:
    body = {"prompt": "x" * 1500, "echo": True, "logprobs": 20, "max_tokens": 1, "n": 100}
    assert "3150000 logprobs" in check_refused(client.post(COMPLETIONS, json=body))["message"]
    for less in ({"n": 2}, {"logprobs": None}):
        assert client.post(COMPLETIONS, json={**body, **less}).status_code == 200


def test_routes_that_are_not_there(client: httpx.Client) -> None:
    for path in ("/", "/v1", "/v1/chat/completion", "/v1/chat/completions/", "/V1/models", "/v1/embeddings", "/docs"):
        assert path in check_refused(client.post(path, json={}), 404)["message"]
    assert "not offered" in check_refused(client.post("/v1/embeddings", json={}), 404)["message"]
    error = check_refused(client.get(CHAT), 405)
    assert error["code"] == "method_not_allowed"
    assert "POST" in error["message"]
    assert client.get(CHAT).headers["allow"] == "POST"
    assert "GET" in check_refused(client.post("/health"), 405)["message"]
    error = check_refused(client.post(COMPLETIONS, json={"prompt": "a", "model": "gpt-4"}), 404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"]
    check_refused(client.get("/v1/models/gpt-4"), 404)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 300) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**31, 2**63, 2**64, 10**300, 1e308, "", "1", "\ud800", "\0", "<|im_end|>"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from([field.name for field in FIELDS]), JSON_VALUES, max_size=4)


@given(path=st.sampled_from([CHAT, COMPLETIONS]), body=BODIES, valid=st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_is_answered_or_refused(client: httpx.Client, path: str, body: dict[str, Any], valid: bool) -> None:
    needed: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "a"}
    content = json.dumps({**body, **needed, "max_tokens": 2} if valid else body)
    response = client.post(path, content=content, headers=JSON)
    assert response.status_code in (200, 400, 404, 408), response.text
    if response.status_code != 200:
        check_refused(response, response.status_code)


def test_every_field_that_is_accepted_has_an_effect_or_none_on_purpose() -> None:  # known fault B137
    kinds = {name: field.kind for name, field in FIELDS_OF[CHAT].items()}
    assert {name for name, kind in kinds.items() if kind == "ignored"} == {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "verbosity",
    }  # fmt: skip
