"""Streams: the shapes of chunks, the same content as whole answers, and how they end."""

import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

import httpx
import pytest

from hotloop import AsyncLLM
from hotloop.server import responses
from server.serving import DONE, Event, choices, finish_reasons, stream, streaming, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
HELLO = {"messages": MESSAGES}


def whole(client: httpx.Client, path: str, body: dict[str, Any]) -> Event:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    result: Event = response.json()
    return result


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (CHAT, {"messages": MESSAGES, "n": 2}, "chat.completion.chunk"),
        (COMPLETIONS, {"prompt": ["abc", "xy"], "n": 2, "max_tokens": 4}, "text_completion"),
    ],
)
def test_every_chunk_says_whose_it_is(
    client: httpx.Client, path: str, body: dict[str, Any], kind: str
) -> None:  # known faults B32, B34
    events = stream(client, path, {**body, "seed": 7})
    first = events[0]
    assert first["id"].startswith("chatcmpl-" if path == CHAT else "cmpl-")
    assert first["system_fingerprint"].startswith("fp_")
    assert abs(first["created"] - time.time()) < 60
    assert (first["object"], first["model"], first["seed"]) == (kind, "tiny", 7)
    same = ("id", "object", "created", "model", "system_fingerprint", "seed")
    for event in events:
        assert [event[name] for name in same] == [first[name] for name in same]
        assert "usage" not in event
        (choice,) = event["choices"]
        assert choice["logprobs"] is None
        assert "finish_reason" in choice
    for index in range(2 if path == CHAT else 4):
        *rest, last = choices(events, index)
        assert [choice["finish_reason"] for choice in rest] == [None] * len(rest)
        assert last["finish_reason"] == ("stop" if path == CHAT else "length")
        if path == CHAT:
            assert rest[0]["delta"] == {"role": "assistant", "content": ""}
            assert all(choice["delta"].keys() == {"content"} for choice in rest[1:])
            assert last["delta"] == {}
        else:
            assert last["text"] == ""
        assert text_of(events, index) == ("Hello 😀!" if path == CHAT else ("defg", "defg", "z{|}", "z{|}")[index])
    assert sum("timings" in event for event in events) == (1 if path == CHAT else 2)
    assert events[-1]["timings"]["drawn_tokens"] == events[-1]["timings"]["predicted_n"]


def test_timings_have_the_fields_of_the_schema(client: httpx.Client) -> None:
    schema = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())
    for timings in (
        whole(client, COMPLETIONS, {"prompt": "abc", "max_tokens": 30})["timings"],
        stream(client, CHAT, HELLO)[-1]["timings"],
    ):
        assert timings.keys() == schema["timings"].keys() | schema["timings_llama_server"].keys()
        n = timings["drawn_tokens"]
        assert timings["e2e_s"] == pytest.approx(timings["ttft_s"] + timings["tpot_s"] * (n - 1), abs=1e-3)
        assert timings["predicted_n"] == n
        assert timings["predicted_ms"] == pytest.approx(timings["predicted_per_token_ms"] * (n - 1))
        assert timings["prompt_ms"] == pytest.approx(1e3 * (timings["ttft_s"] - timings["queued_s"]))
        assert timings["prompt_n"] + timings["cache_n"] in (3, 21)


def test_a_request_without_a_seed_is_told_one_that_replays_it(client: httpx.Client) -> None:
    body = {"prompt": ["abc", "abc"], "max_tokens": 20, "temperature": 2, "logit_bias": {str(i): 30 for i in range(97, 123)}}
    events = stream(client, COMPLETIONS, body)
    seeds = {event["choices"][0]["index"]: event["seed"] for event in events}
    assert seeds[0] != seeds[1]
    for index, seed in seeds.items():
        answer = whole(client, COMPLETIONS, {**body, "prompt": "abc", "seed": seed})
        assert (answer["seed"], answer["choices"][0]["text"]) == (seed, text_of(events, index))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_comes_last_and_only_if_asked_for(
    client: httpx.Client, path: str, wanted: bool | None, n: int
) -> None:  # known fault B33
    body: dict[str, Any] = {"n": n, "max_tokens": 5, **(HELLO if path == CHAT else {"prompt": ["abc", "d"]})}
    if wanted is not None:
        body["stream_options"] = {"include_usage": wanted}
    *events, last = stream(client, path, body)
    if not wanted:
        assert not [event for event in [*events, last] if "usage" in event]
        return
    assert last["choices"] == []
    assert [event["usage"] for event in events] == [None] * len(events)
    del body["stream_options"]
    expected = whole(client, path, body)["usage"]
    expected["prompt_tokens_details"] = last["usage"]["prompt_tokens_details"]  # the second time more is cached
    assert last["usage"] == expected
    assert last["usage"]["completion_tokens"] == 5 * n * (1 if path == CHAT else 2)
    assert last["usage"]["max_tokens"] == 5


def test_usage_in_every_chunk(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": ["abc", "d"], "max_tokens": 5, "return_token_ids": True, "stream_options": options}
    *events, last = stream(client, COMPLETIONS, body)
    so_far = 0
    for event in events:
        so_far += len(event["choices"][0].get("token_ids", []))
        assert event["usage"] == {"prompt_tokens": 4, "completion_tokens": so_far, "total_tokens": 4 + so_far}
    assert last["usage"]["completion_tokens"] == so_far == 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 9, "logprobs": 2, "return_token_ids": True}),
        (COMPLETIONS, {"prompt": ["abc", [97, 98]], "n": 2, "max_tokens": 3, "logprobs": 0}),
        (COMPLETIONS, {"prompt": ["abc", [97, 98]], "max_tokens": 3, "echo": True, "return_token_ids": True}),
        (COMPLETIONS, {"prompt": ["abc", [97, 98]], "n": 2, "max_tokens": 3, "echo": True, "logprobs": 2}),
        (COMPLETIONS, {"prompt": ["abc", [97, 98]], "n": 2, "max_tokens": 3, "prompt_logprobs": 1, "logprobs": 0}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 3, "stop": "d", "prompt_logprobs": 1, "echo": True}),
        (COMPLETIONS, {"prompt": ["abc", "ab"], "max_tokens": 3, "prompt_logprobs": 0, "echo": True, "logprobs": 5}),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 2, "n": 2}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 20, "stop": "gh", "logprobs": 1}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 20, "stop": "gh", "include_stop_str_in_output": True}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 20, "stop_token_ids": [105]}),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "n": 2, "return_token_ids": True}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 3}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 4, "stop": "lo"}),
    ],
)
def test_a_stream_says_what_the_whole_answer_says(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:  # known faults B18, B21, B29, B116, B130
    answer = whole(client, path, body)
    events = stream(client, path, body)
    told = [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event]
    assert told == ([answer["prompt_logprobs"]] if "prompt_logprobs" in answer else [])
    for choice in answer["choices"]:
        parts = choices(events, choice["index"])
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text_of(events, choice["index"]) == text
        assert "\ufffd" not in text or body.get("max_tokens") in (3, 4)
        assert finish_reasons(events, choice["index"]) == [choice["finish_reason"]]
        assert [i for part in parts for i in part.get("token_ids", [])] == choice.get("token_ids", [])
        told = [part["prompt_logprobs"] for part in parts if "prompt_logprobs" in part]
        assert told == ([choice["prompt_logprobs"]] if "prompt_logprobs" in choice else [])
        logprobs = choice["logprobs"]
        if logprobs is None:
            assert all(part["logprobs"] is None for part in parts)
            continue
        for name in ("content",) if path == CHAT else ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            pieces = [part["logprobs"][name] for part in parts if part["logprobs"] is not None]
            if logprobs[name] is None:
                assert pieces == [None] * len(pieces)
            else:
                assert [entry for piece in pieces for entry in piece] == logprobs[name]
    assert {i for event in events for i in [event["choices"][0]["index"]]} == {c["index"] for c in answer["choices"]}


def test_bytes_of_logprobs_are_those_of_the_text(client: httpx.Client) -> None:  # known fault B18
    answer = whole(client, CHAT, {**HELLO, "logprobs": True, "max_tokens": 6})
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Hello 😀!"
    assert answer["choices"][0]["message"]["content"] == "Hello 😀!"


def test_echo_begins_with_the_prompt(client: httpx.Client) -> None:
    body = {"prompt": ["abc", [120, 121]], "max_tokens": 2, "echo": True}
    assert [c["text"] for c in whole(client, COMPLETIONS, body)["choices"]] == ["abcde", "xyz{"]
    events = stream(client, COMPLETIONS, body)
    assert [choices(events, index)[0]["text"] for index in (0, 1)] == ["abc", "xy"]


def test_deltas_of_a_slow_reader_are_merged_and_none_is_lost(
    client: httpx.Client, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B35, B37
    """The server's buffers are filled by a reader that waits; meanwhile another request is answered."""
    body = {"prompt": "abc", "max_tokens": 1900, "ignore_eos": True, "logprobs": 5}
    expected = whole(client, COMPLETIONS, body)["choices"][0]["text"]
    with streaming(client, COMPLETIONS, body) as events:
        first = next(events)
        assert len(whole(client, COMPLETIONS, {"prompt": "a", "max_tokens": 50})["choices"][0]["text"]) == 50
        deadline_s = time.monotonic() + 20
        while llm._pump.num_open and time.monotonic() < deadline_s:
            time.sleep(0.01)
        rest = list(events)
    assert rest[-1] is DONE
    assert text_of([first, *rest[:-1]]) == expected


# ---- ends -----------------------------------------------------------------------------------------------------------


def slow_steps(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
    step = llm._pump.client._core.step  # type: ignore[attr-defined]
    monkeypatch.setattr(llm._pump.client._core, "step", lambda: (time.sleep(seconds), step())[1])  # type: ignore[attr-defined]


def test_a_deadline_in_the_middle_is_an_error_event(
    client: httpx.Client, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known fault B134
    slow_steps(llm, monkeypatch)
    events = stream(client, COMPLETIONS, {"prompt": "abc", "max_tokens": 1000, "timeout_s": 0.2})
    error = events[-1]["error"]
    assert (error["type"], error["code"], error["param"]) == ("timeout_error", "deadline_exceeded", None)
    assert 2 < len(events) < 100
    assert finish_reasons(events[:-1]) == []


def test_a_deadline_before_the_first_token_is_a_status(
    client: httpx.Client, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(llm, monkeypatch)
    for more in ({}, {"stream": True}):
        response = client.post(COMPLETIONS, json={"prompt": "abc", "timeout_s": 1e-6, **more})
        assert (response.status_code, response.json()["error"]["code"]) == (408, "deadline_exceeded")
    response = client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 1000, "timeout_s": 0.2})
    assert response.status_code == 408


def test_a_failure_of_the_engine_is_an_error_event(
    client: httpx.Client, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B112, B134
    core = llm._pump.client._core  # type: ignore[attr-defined]
    slow_steps(llm, monkeypatch)
    forward = core.runner.forward

    def fail(batch: Any) -> Any:
        if list(batch.token_ids) == [ord("g")]:
            raise RuntimeError("broken at g")
        return forward(batch)

    monkeypatch.setattr(core.runner, "forward", fail)
    events = stream(client, COMPLETIONS, {"prompt": "abc", "max_tokens": 100})
    assert text_of(events[:-1]) == "defg"
    assert events[-1]["error"]["type"] == "server_error"
    assert "broken at g" in events[-1]["error"]["message"]
    assert client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 100}).status_code == 500
    assert whole(client, COMPLETIONS, {"prompt": "hij", "max_tokens": 2})["choices"][0]["text"] == "kl"


def test_whole_answers_and_streams_together(client: httpx.Client) -> None:  # known fault B136
    def ask(i: int) -> str:
        body = {"prompt": "abc"[: 1 + i % 3], "max_tokens": 20}
        if i % 2:
            return text_of(stream(client, COMPLETIONS, body))
        text: str = whole(client, COMPLETIONS, body)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(ask, range(12)))
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert texts == [alphabet[1 + i % 3 :][:20] for i in range(12)]


@pytest.mark.parametrize("is_stream", [False, True])
def test_many_logprobs_are_put_into_words_off_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    threads: dict[int, str] = {}
    make = responses.completion_logprobs

    def noting(token_ids: Sequence[int], *args: Any) -> dict[str, Any]:
        threads[len(token_ids)] = threading.current_thread().name
        return make(token_ids, *args)

    monkeypatch.setattr(responses, "completion_logprobs", noting)
    body = {"prompt": "a" * 300, "echo": True, "logprobs": 1, "max_tokens": 3, "n": 2}
    if is_stream:
        assert stream(client, COMPLETIONS, body)[-1]["choices"][0]["finish_reason"] == "length"
    else:
        assert len(client.post(COMPLETIONS, json=body).json()["choices"][1]["logprobs"]["tokens"]) == 303
    assert threads[300].startswith("uvloop_")  # of the loop's executor, not of the loop
