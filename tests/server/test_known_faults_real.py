"""The checks of the known faults that name a real model, on smollm2-135m where the model cache holds it: a real vocabulary,
real preferences, and a `hotloop serve` of its own."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.serving import ServerProcess, choices, finish_reasons, stream, streaming, strict_json, text_of

pytestmark = pytest.mark.real_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT = 512
GREEDY = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 12}
TWO_FIELDS = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 60}, "year": {"type": "integer"}},
    "required": ["name", "year"], "additionalProperties": False,
}  # fmt: skip
END_TOKENS = {"<|im_end|>": 2, "<|endoftext|>": 0}


@pytest.fixture(scope="module")
def server(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = model_path("smollm2-135m")
    with ServerProcess(path, "--max-model-len", str(CONTEXT), home=tmp_path_factory.mktemp("home")) as process:
        yield process


@pytest.fixture
def smol(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client; whatever the test sent, the server serves on."""
    with server.client(timeout_s=120) as client:
        yield client
        assert client.get("/health").status_code == 200
        assert complete(client, **GREEDY, seed=1)["choices"][0]["finish_reason"] == "length"


def complete(client: httpx.Client, **body: Any) -> Any:
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def chat(client: httpx.Client, text: str, **body: Any) -> Any:
    response = client.post(CHAT, json={"messages": [{"role": "user", "content": text}], **body})
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def refused(client: httpx.Client, path: str = COMPLETIONS, /, **body: Any) -> str:
    response = client.post(path, json=body)
    assert response.status_code == 400, (body, response.text)
    message: str = strict_json(response.content)["error"]["message"]
    return message


def test_what_is_wrong_is_refused_and_nobody_else_notices(smol: httpx.Client) -> None:
    # known faults B03, B25, B41, B102, B105
    wrong: list[dict[str, Any]] = [
        *({"logit_bias": {key: 5}} for key in ("999999", "-1", "abc")), {"stop": ""}, {"stop": ["", "x"]},
        {"stop_token_ids": [10**6], "min_tokens": 5}, {"allowed_token_ids": [10**6]}, {"min_tokens": 9, "max_tokens": 8},
        {"temperature": -0.1}, {"top_p": 0}, {"top_p": 1.0001}, {"min_p": 1.5}, {"repetition_penalty": 0},
        {"repetition_penalty": -1}, {"top_k": -2}, {"n": 0}, {"bad_words": [""]}, {"typical_p": 0}, {"mirostat": 1},
    ]  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        expected = texts(complete(smol, **GREEDY))
        for fields in wrong:
            beside = pool.submit(complete, smol, **GREEDY)
            refused(smol, **{**GREEDY, **fields})
            assert texts(beside.result()) == expected
    for number in ("NaN", "Infinity", "-Infinity", "1e309"):
        for field in ("temperature", "top_p", "min_p", "frequency_penalty"):
            body = f'{{"prompt": "a", "{field}": {number}}}'
            assert smol.post(COMPLETIONS, content=body, headers={"content-type": "application/json"}).status_code == 400
    for stop in (None, []):
        assert texts(complete(smol, **GREEDY, stop=stop)) == expected


def test_empty_prompts(smol: httpx.Client) -> None:  # known faults B39, B131
    for prompt in ("", [], [""], None):
        refused(smol, prompt=prompt, max_tokens=2)
    refused(smol, max_tokens=2)
    refused(smol, CHAT, messages=[])
    assert complete(smol, prompt="  ", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_prompts_longer_than_the_context(smol: httpx.Client) -> None:  # known faults B42, B126
    ids = [1000 + i for i in range(CONTEXT)]
    message = refused(smol, prompt=ids)
    assert message.count(str(CONTEXT)) == 2
    long = [{"role": "user", "content": "The word is apple. " + "Now something else. " * CONTEXT}]
    refused(smol, CHAT, messages=long)
    for path, body in ((COMPLETIONS, {"prompt": [*ids, 5]}), (CHAT, {"messages": long})):
        usage = smol.post(path, json={**body, "max_tokens": 1, "truncate_prompt_tokens": 100}).json()["usage"]
        assert usage["prompt_tokens"] == 100
        assert usage["prompt_tokens_details"]["truncated_tokens"] >= CONTEXT + 1 - 100


def test_greedy_whatever_else_is_sent(smol: httpx.Client) -> None:  # known faults B04, B07
    expected = texts(complete(smol, **GREEDY))
    for fields in ({"top_p": 0.3, "top_k": 1}, {"top_p": 0.95, "top_k": 64, "min_p": 0.1}, {"seed": 3}):
        assert texts(complete(smol, **GREEDY, **fields)) == expected
    for temperature in (1e-30, 1e-7):
        assert texts(complete(smol, **{**GREEDY, "temperature": temperature})) == expected
    assert texts(complete(smol, **{**GREEDY, "temperature": 1.0, "top_p": 1e-9})) == expected


def test_seeds(smol: httpx.Client) -> None:  # known fault B08
    body = {"prompt": "Once upon a time", "temperature": 0.7, "max_tokens": 16}
    with ThreadPoolExecutor(10) as pool:
        fresh = list(pool.map(lambda _: texts(complete(smol, **body))[0], range(20)))
        seeded = list(pool.map(lambda _: texts(complete(smol, **body, seed=7))[0], range(20)))
    assert len(set(fresh)) > 10
    assert len(set(seeded)) == 1


def test_raw_logprobs_are_those_of_the_model(smol: httpx.Client) -> None:  # known faults B14, B15
    of_temperature = []
    for temperature in (0, 0.5, 2):
        answer = complete(
            smol, prompt="The capital of France is", temperature=temperature, top_k=2, logprobs=5, max_tokens=3,
            allowed_token_ids=[1000],
        )  # fmt: skip
        logprobs = answer["choices"][0]["logprobs"]
        assert all(value < 0 for value in logprobs["token_logprobs"])
        for top in logprobs["top_logprobs"]:
            assert sum(2.718281828 ** value for value in top.values()) <= 1 + 1e-5
        of_temperature.append(logprobs)
    assert of_temperature[0] == of_temperature[1] == of_temperature[2]
    answer = chat(smol, "Hi", temperature=0, logprobs=True, top_logprobs=10, max_tokens=5)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        top = entry["top_logprobs"]
        assert len(top) == 10
        assert all(a["logprob"] >= b["logprob"] for a, b in pairwise(top))
        assert top[0] == {name: entry[name] for name in ("token", "logprob", "bytes")}


def test_no_number_breaks_json(smol: httpx.Client) -> None:  # known fault B17
    complete(smol, prompt="hi", echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=4)
    form = {"structured_outputs": {"regex": "[0-9]{3}"}}
    answer = chat(smol, "A number?", logprobs=True, top_logprobs=20, max_tokens=8, **form)
    assert re.fullmatch("[0-9]{3}", answer["choices"][0]["message"]["content"])
    for mode in ("raw", "processed"):
        complete(smol, prompt="hi", logprobs=20, logprobs_mode=mode, temperature=1, top_k=3, max_tokens=4, **form)


def test_bytes_of_logprobs_join_to_the_text(smol: httpx.Client) -> None:  # known faults B18, B29
    emoji = {"structured_outputs": {"regex": "[😀-🙏]{2} é漢"}}
    choice = chat(smol, "Smile!", logprobs=True, top_logprobs=2, max_tokens=40, **emoji)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == choice["message"]["content"]
    assert len(entries) > 4
    events = stream(smol, CHAT, {"messages": [{"role": "user", "content": "Smile!"}], "max_tokens": 40, **emoji})
    assert "\ufffd" not in text_of(events)
    assert re.fullmatch("[😀-🙏]{2} é漢", text_of(events))


def test_echo_has_the_logprob_of_every_token(smol: httpx.Client) -> None:  # known faults B19, B21
    """As many as there are tokens; each that of the token drawn after those before it; the same again and in a stream."""
    prompt = "Paris is the capital of France and"
    ids = smol.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    cold, warm = (complete(smol, **body)["choices"][0]["logprobs"] for _ in range(2))
    assert cold == warm
    values = cold["token_logprobs"]
    assert len(values) == len(cold["top_logprobs"]) == len(ids) + 1
    assert values[0] is None
    for i in range(1, len(ids)):
        one = complete(smol, prompt=ids[:i], allowed_token_ids=[ids[i]], logprobs=0, max_tokens=1)
        assert one["choices"][0]["logprobs"]["token_logprobs"] == [values[i]]
    pieces = [part["logprobs"]["token_logprobs"] for part in choices(stream(smol, COMPLETIONS, body)) if part["logprobs"]]
    assert [value for piece in pieces for value in piece] == values


def test_stops(smol: httpx.Client) -> None:  # known faults B22, B23, B26, B102, B130
    whole = texts(complete(smol, **{**GREEDY, "max_tokens": 40}))[0]
    stop = whole[11:19]  # from the middle of a word to the middle of another
    end = whole.index(stop)
    for include, text in ((False, whole[:end]), (True, whole[: end + len(stop)])):
        body = {**GREEDY, "max_tokens": 40, "stop": stop, "include_stop_str_in_output": include}
        assert texts(complete(smol, **body)) == [text]
        events = stream(smol, COMPLETIONS, body)
        assert (text_of(events), finish_reasons(events)) == (text, ["stop"])
    late = complete(smol, **{**GREEDY, "max_tokens": 40}, stop=stop, min_tokens=30)
    assert late["usage"]["completion_tokens"] >= 30
    never = {**GREEDY, "stop": whole[-4:] + "never"}
    assert text_of(stream(smol, COMPLETIONS, never)) == texts(complete(smol, **never))[0] == texts(complete(smol, **GREEDY))[0]
    answer = chat(smol, "Say hi.", temperature=0, max_tokens=CONTEXT)
    num_tokens = answer["usage"]["completion_tokens"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    for budget, reason in ((num_tokens, "stop"), (num_tokens - 1, "length")):
        assert chat(smol, "Say hi.", temperature=0, max_tokens=budget)["choices"][0]["finish_reason"] == reason


def test_the_last_token_is_never_lost(server: ServerProcess) -> None:  # known faults B35, B37
    """Short streams read by readers that dawdle."""

    def read(seed: int) -> str:
        rng = random.Random(seed)
        with server.client() as client, streaming(client, COMPLETIONS, {**GREEDY, "max_tokens": 8}) as events:
            text = ""
            for event in events:
                time.sleep(rng.choice((0, 0, 0.02)))
                text += text_of([event]) if "choices" in event else ""
        return text

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(read, range(200)))) == 1


def test_chunks(smol: httpx.Client) -> None:  # known faults B32, B33, B34, B134
    for n in (1, 2):
        for wanted in (True, False, None):
            options = {} if wanted is None else {"stream_options": {"include_usage": wanted}}
            body = {"messages": [{"role": "user", "content": "Count."}], "n": n, "max_tokens": 10, "seed": 1, **options}
            events = stream(smol, CHAT, body)
            usages = [event["usage"] for event in events if event.get("usage")]
            if wanted:
                assert usages == [events[-1]["usage"]]
                assert events.pop()["choices"] == []
                assert usages[0]["completion_tokens"] == 10 * n
            assert bool(usages) == bool(wanted)
            assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
            for index in range(n):
                first, *_, last = choices(events, index)
                assert first["delta"]["role"] == "assistant"
                assert (last["delta"], last["finish_reason"]) == ({}, "length")
                assert len(finish_reasons(events, index)) == 1


def test_whole_and_streamed_together(server: ServerProcess) -> None:  # known fault B136
    prompts = ["Hello", "The sky is", "One, two,"]

    def ask(i: int) -> tuple[str, str]:
        body = {**GREEDY, "prompt": prompts[i % 3]}
        with server.client() as client:
            return prompts[i % 3], text_of(stream(client, COMPLETIONS, body)) if i % 2 else texts(complete(client, **body))[0]

    with ThreadPoolExecutor(12) as pool:
        assert len(set(pool.map(ask, range(12)))) == 3


def test_several_prompts(smol: httpx.Client) -> None:  # known fault B116
    prompts: list[Any] = ["Hello", [504, 1000, 2000], "The sky is", [28, 29]]
    together = complete(smol, **{**GREEDY, "prompt": prompts}, n=2, logprobs=2)
    assert [choice["index"] for choice in together["choices"]] == list(range(8))
    used = 0
    for i, prompt in enumerate(prompts):
        alone = complete(smol, **{**GREEDY, "prompt": prompt}, logprobs=2)
        used += alone["usage"]["prompt_tokens"]
        for choice in together["choices"][2 * i : 2 * i + 2]:
            assert {**choice, "index": 0} == alone["choices"][0]
    assert (together["usage"]["prompt_tokens"], together["usage"]["completion_tokens"]) == (used, 8 * 12)


def test_parts_of_a_message_are_one_text(smol: httpx.Client) -> None:  # known fault B110
    parts = [{"type": "text", "text": "Name a"}, {"type": "text", "text": "colour."}]
    told = [
        smol.post("/tokenize", json={"messages": [{"role": "user", "content": content}]}).json()["tokens"]
        for content in (parts, "Name a\ncolour.")
    ]
    assert told[0] == told[1]


# ---- answers with a form --------------------------------------------------------------------------------------------


def test_a_form_without_a_word_of_json_in_the_prompt(smol: httpx.Client) -> None:  # known fault B70
    """No blanks for ever, and no cut answer."""
    topics = (
        "cats", "Rome", "the moon", "tea", "chess", "Newton", "rivers", "jazz", "bread", "trains", "gold", "bees", "Mars",
        "football", "rain", "books", "Egypt", "dreams", "salt", "glass",
    )  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": TWO_FIELDS}}

    def ask(topic: str) -> Any:
        return chat(smol, f"Tell me about {topic}.", temperature=0, max_tokens=200, response_format=form)["choices"][0]

    with ThreadPoolExecutor(20) as pool:
        for choice in pool.map(ask, topics):
            text = choice["message"]["content"]
            assert choice["finish_reason"] == "stop", text
            value = json.loads(text)
            assert value.keys() == {"name", "year"}
            assert type(value["year"]) is int


def test_no_end_token_gets_through(smol: httpx.Client) -> None:  # known faults B72, B73
    for token, token_id in END_TOKENS.items():
        assert smol.post("/detokenize", json={"tokens": [token_id]}).json()["prompt"] == token
    bias = {str(token_id): 50 for token_id in (*END_TOKENS.values(), 1, 3, 4)}  # and other control tokens
    for temperature in (0, 1.0):
        answer = complete(
            smol, prompt="A person:", temperature=temperature, seed=1, max_tokens=200, logit_bias=bias,
            structured_outputs={"json": TWO_FIELDS},
        )  # fmt: skip
        assert json.loads(answer["choices"][0]["text"]).keys() == {"name", "year"}


def test_a_space_can_be_written(smol: httpx.Client) -> None:  # known fault B75
    answer = complete(
        smol, prompt="Two words:", temperature=0, max_tokens=20, structured_outputs={"regex": "[a-z]{1,9} [a-z]{1,9}"}
    )
    assert re.fullmatch("[a-z]{1,9} [a-z]{1,9}", answer["choices"][0]["text"])


def test_forms_that_cannot_be_enforced(smol: httpx.Client) -> None:  # known faults B65, B66
    """Each a 400 that says where, while a plain request runs; big numbers are fine."""
    bad: list[tuple[dict[str, Any], str]] = [
        ({"json": {"properties": {"a": {"type": "nonsense"}}}}, "json.properties.a"),
        ({"json": {"properties": {"a": {"items": {"type": ["string", "nonsense"]}}}}}, "json.properties.a.items"),
        ({"json": {"type": "string", "pattern": "(["}}, "unclosed"), ({"json": {"pattern": "(?=a)b"}}, "look-around"),
        ({"json": {"$ref": "#/nowhere"}}, "nowhere"), ({"json": {"not": {}}}, "not"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"), ({"json": {"enum": []}}, "empty"),
        ({"json": {"format": "nonsense", "type": "string"}}, "nonsense"), ({"json": {"multipleOf": 999983}}, "multipleOf"),
        ({"regex": "(["}, "regex"), ({"grammar": "Start ::= [a]"}, "root"), ({"grammar": "start: foo"}, "foo"),
    ]  # fmt: skip
    expected = texts(complete(smol, **GREEDY))
    with ThreadPoolExecutor(1) as pool:
        for form, reason in bad:
            beside = pool.submit(complete, smol, **GREEDY)
            assert reason in refused(smol, prompt="a", structured_outputs=form)
            assert texts(beside.result()) == expected
    large = {"json": {"type": "integer", "minimum": 10_000_000_000, "maximum": 20_000_000_000}}
    value = int(texts(complete(smol, prompt="A number:", max_tokens=30, seed=1, structured_outputs=large))[0])
    assert 10_000_000_000 <= value <= 20_000_000_000
