"""Stops, lengths, characters and what else a stream must not change, on a `hotloop serve` whose model says what it is told."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from server.models import SCRIPTS, Scripted
from server.serving import Event, choices, finish_reasons, stream, streaming, strict_json, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0}


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Event:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: Event = strict_json(response.content)
    return answer


def both(client: httpx.Client, body: dict[str, Any]) -> Event:
    """The only choice of a completion, after a check that a stream says the same."""
    answer = ask(client, COMPLETIONS, body)
    (choice,) = answer["choices"]
    events = stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert text_of(events) == choice["text"]
    assert finish_reasons(events) == [choice["finish_reason"]]
    assert events[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    for name in ("tokens", "text_offset"):
        told = [entry for c in choices(events) if c["logprobs"] for entry in c["logprobs"][name]]
        assert told == (choice["logprobs"][name] if choice["logprobs"] else [])
    return {**choice, "completion_tokens": answer["usage"]["completion_tokens"], "events": events}


@pytest.mark.parametrize(
    ("script", "fields", "text", "reason", "num_tokens"),
    [
        ("stops", {"stop": "DEFGHIJ"}, "ABC", "stop", 1),  # over four tokens, and it ends inside the last
        ("stops", {"stop": "E"}, "ABCD", "stop", 2),  # inside a token
        ("stops", {"stop": ["HIJ", "FG"]}, "ABCDE", "stop", 2),  # the first that is complete
        ("stops", {"stop": "ABC"}, "", "stop", 0),
        ("stops", {"stop": "FGH", "include_stop_str_in_output": True}, "ABCDEFGH", "stop", 4),
        ("stops", {"stop": "DEF", "min_tokens": 3}, "ABCDEFGHIJK", "stop", 6),  # before min_tokens it does not count
        ("stops", {"stop": None}, "ABCDEFGHIJK", "stop", 6),
        ("stops", {"stop": []}, "ABCDEFGHIJK", "stop", 6),
        ("stops", {"stop": "K", "max_tokens": 5}, "ABCDEFGHIJ", "stop", 5),  # on the last token there is room for
        ("stops", {"max_tokens": 5}, "ABCDEFGHIJK", "length", 5),
        ("stops", {"max_tokens": 6}, "ABCDEFGHIJK", "stop", 6),  # the end token is the last there is room for
        ("stops", {"max_tokens": 8, "ignore_eos": True}, "ABCDEFGHIJKab", "length", 8),
        ("held back", {"stop": "TRE\nAAAA"}, "UNO DUE TRE\nAABB", "stop", 6),
        ("held back", {"stop": "TRE\nAAAA", "max_tokens": 3}, "UNO DUE TRE", "length", 3),
        ("held back", {"stop": "TRE\nAABB"}, "UNO DUE ", "stop", 3),
    ],
)
def test_stops_and_lengths(
    scripted: Scripted, scripted_client: httpx.Client, script: str, fields: dict[str, Any], text: str, reason: str,
    num_tokens: int,
) -> None:  # fmt: skip  # known faults B22, B23, B25, B26, B102, B103, B130
    """num_tokens: those that the text is of; what comes after a stop does not count."""
    body = {"prompt": scripted.prompts[script], "max_tokens": 50, "logprobs": 0, **GREEDY, **fields}
    choice = both(scripted_client, body)
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    assert choice["completion_tokens"] == num_tokens


def test_a_stop_token_of_the_request(scripted: Scripted, scripted_client: httpx.Client) -> None:  # known fault B130
    prompt = scripted.prompts["stops"]
    body = {"prompt": prompt, "max_tokens": 50, "logprobs": 0, "stop_token_ids": [prompt[0] + 3], **GREEDY}
    choice = both(scripted_client, body)
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ABCDEF", "stop", prompt[0] + 3)
    assert both(scripted_client, {**body, "include_stop_str_in_output": True})["text"] == "ABCDEFG"


@pytest.mark.parametrize("script", ["split characters", "broken characters"])
def test_characters_over_tokens(scripted: Scripted, scripted_client: httpx.Client, script: str) -> None:
    # known faults B18, B29, B30
    raw = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in SCRIPTS[script])
    choice = both(scripted_client, {"prompt": scripted.prompts[script], "max_tokens": 50, "logprobs": 0, **GREEDY})
    assert choice["text"] == raw.decode("utf-8", "replace")
    assert choice["logprobs"]["text_offset"] == {
        "split characters": [0, 2, 2, 2, 2, 3, 3, 4, 5, 5, 6, 7], "broken characters": [0, 1, 3, 4, 10, 10, 10],
    }[script]  # fmt: skip
    assert all("\ufffd" in choice["text"] or "\ufffd" not in c["text"] for c in choices(choice["events"]))
    # Not one character for each byte, and the byte that comes to nothing holds nothing up.
    assert choice["text"] == {"split characters": "a 😊你 ď!", "broken characters": "\ufffdok\ufffd hello\ufffd"}[script]


def test_deltas_of_slow_readers_add_up(scripted: Scripted) -> None:  # known fault B35
    """The engine is far ahead of these readers, and nothing is lost, repeated or cumulative."""
    prompts = ["abc", "xyz", "0", "Q", *list(scripted.prompts.values())[:4]]

    def read(prompt: Any) -> str:
        with scripted.server.client() as client:
            text = ""
            with streaming(client, COMPLETIONS, {"prompt": prompt, "max_tokens": 400, **GREEDY}) as events:
                for number, event in enumerate(events):
                    if number < 20:
                        time.sleep(0.02)
                    text += text_of([event]) if "choices" in event else ""
            return text

    with ThreadPoolExecutor(8) as pool, scripted.server.client() as client:
        texts = list(pool.map(read, prompts))
        answers = [ask(client, COMPLETIONS, {"prompt": p, "max_tokens": 400, **GREEDY}) for p in prompts]
    assert texts == [answer["choices"][0]["text"] for answer in answers]


def test_the_last_piece_is_never_lost(scripted: Scripted) -> None:  # known fault B37
    def read(number: int) -> str:
        chance = random.Random(number)
        text = ""
        body = {"prompt": scripted.prompts["words"], "max_tokens": 8, **GREEDY}
        with streaming(client, COMPLETIONS, body) as events:
            for event in events:
                time.sleep(chance.choice([0, 0, 0.003]))
                text += text_of([event]) if "choices" in event else ""
        return text

    with ThreadPoolExecutor(8) as pool, scripted.server.client() as client:
        assert set(pool.map(read, range(200))) == {"".join(f" word{i}" for i in range(8))}


def test_several_prompts_and_choices(tiny_client: httpx.Client) -> None:  # known fault B116
    body = {"max_tokens": 6, "seed": 3, "n": 2, "logprobs": 1, "ignore_eos": True}
    for prompts in (["the cat", "a", "the cat"], [[116, 104, 101], [72, 105], [97]]):
        alone = [ask(tiny_client, COMPLETIONS, {**body, "prompt": prompt}) for prompt in prompts]
        expected = [(choice["text"], choice["logprobs"]) for answer in alone for choice in answer["choices"]]
        several = ask(tiny_client, COMPLETIONS, {**body, "prompt": prompts})
        assert [choice["index"] for choice in several["choices"]] == list(range(6))
        assert [(choice["text"], choice["logprobs"]) for choice in several["choices"]] == expected
        for name in ("prompt_tokens", "completion_tokens"):
            assert several["usage"][name] == sum(answer["usage"][name] for answer in alone)
        events = stream(tiny_client, COMPLETIONS, {**body, "prompt": prompts})
        assert [text_of(events, index) for index in range(6)] == [text for text, _ in expected]
        assert [finish_reasons(events, index) for index in range(6)] == [["length"]] * 6
