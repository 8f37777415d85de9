"""Answers with a form over HTTP: whole and as streams, refused with the reason, and never in anybody's way."""

import json
import re
import threading
from typing import Any

import httpx
import pytest

from hotloop import AsyncLLM, StructuredOutputsParams
from hotloop.sampling.grammar import Grammar, GrammarCompiler
from hotloop.server.fields import CHAT, COMPLETIONS
from server.serving import stream, text_of

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object", "required": ["kind", "n"], "additionalProperties": False,
    "properties": {"kind": {"enum": ["a", "né"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}
BAD_SCHEMAS: list[Any] = [
    {"type": "nonsense"}, {"properties": {"a": {"type": ["string", "nonsense"]}}}, {"type": "string", "pattern": "(["},
    {"type": "string", "pattern": "(?=a)b"}, {"$ref": "#/nowhere"}, {"$ref": "http://example.com/x"}, {"not": {}},
    {"minimum": 5, "maximum": 3, "type": "integer"}, {"type": "array", "uniqueItems": True}, {"enum": []},
    {"type": "string", "format": "nonsense"}, {"type": "string", "minLength": "x"}, {"multipleOf": 999983}, [], "x", None,
]  # fmt: skip


def test_a_schema_whole_and_streamed(client: httpx.Client) -> None:
    body = {"messages": HI, "response_format": FORMAT, "seed": 5, "temperature": 2.0, "max_tokens": 100, "logprobs": True}
    answer = client.post(CHAT, json=body).json()
    (choice,) = answer["choices"]
    value = json.loads(choice["message"]["content"])
    assert value.keys() == {"kind", "n"}
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    assert text_of(stream(client, CHAT, body)) == choice["message"]["content"]


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-z]{3}"}, "[a-z]{3}"), ({"choice": ["yes", "no"]}, "yes|no"), ({"json": {"const": "x"}}, '"x"'),
        ({"grammar": 'root ::= "(" root? ")"'}, r"\(+\)+"), ({"grammar": 'start: "a" "b"'}, "ab"),
    ],
)  # fmt: skip
def test_other_forms(client: httpx.Client, form: dict[str, Any], pattern: str) -> None:
    body = {"prompt": "x", "structured_outputs": form, "n": 2, "temperature": 1.0, "max_tokens": 200}
    answer = client.post(COMPLETIONS, json=body).json()
    for choice in answer["choices"]:
        assert re.fullmatch(pattern, choice["text"]) or choice["finish_reason"] == "length"


def test_an_answer_is_made_whole_before_it_is_cut(client: httpx.Client) -> None:
    form = {"json": {"type": "array", "items": {"type": "string"}}}
    body = {"prompt": "x", "max_tokens": 60, "temperature": 1.0, "seed": 4, "logit_bias": {"34": -20, "93": -20}}  # " and ]
    (cut,) = client.post(COMPLETIONS, json={**body, "structured_outputs": form}).json()["choices"]
    assert cut["finish_reason"] == "length"
    (whole,) = client.post(COMPLETIONS, json={**body, "structured_outputs": {**form, "finish_within": 20}}).json()["choices"]
    assert whole["finish_reason"] == "stop"
    assert json.loads(whole["text"])
    assert whole["text"][:20] == cut["text"][:20]
    refused = client.post(COMPLETIONS, json={**body, "structured_outputs": {"regex": "a", "finish_within": 20}})
    assert refused.status_code == 400
    body["response_format"] = {"type": "json_schema", "json_schema": {"schema": form["json"]}}
    (same,) = client.post(COMPLETIONS, json={**body, "structured_outputs": {"finish_within": 20}}).json()["choices"]
    assert same["text"] == whole["text"]


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=str)
def test_a_schema_that_cannot_be_enforced_is_refused(client: httpx.Client, schema: Any) -> None:  # known faults B65, B66
    body = {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "stream": True}
    response = client.post(CHAT, json=body)
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert len(message) < 1000
    if isinstance(schema, dict):
        of_format = "response_format.json_schema.schema"
        assert message.startswith(of_format)
        items = {"anyOf": [schema, {"const": 1}]}
        inside = {"type": "object", "properties": {"ok": True, "a": {"type": "array", "items": items}}}
        for fields, name in (
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": inside}}}, of_format),
            ({"structured_outputs": {"json": inside}}, "structured_outputs.json"),
        ):
            response = client.post(CHAT, json={"messages": HI, "max_tokens": 2, **fields})
            if "Unsatisfiable" in message:  # there the other alternative can
                assert response.status_code == 200
            else:
                path = ".properties.a" if schema.keys() == {"properties"} else ""
                told = response.json()["error"]["message"]
                assert told.startswith(f"{name}.properties.a.items.anyOf[0]{path}"), told
    assert client.get("/health").status_code == 200


def test_compiling_is_in_nobodys_way(
    client: httpx.Client, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known fault B65
    """A compiler that is not done before others have been answered."""
    go = threading.Event()
    compile_ = GrammarCompiler.compile

    def wait(compiler: GrammarCompiler, spec: StructuredOutputsParams) -> Grammar:
        assert go.wait(30)
        return compile_(compiler, spec)

    monkeypatch.setattr(GrammarCompiler, "compile", wait)
    breakers = llm.inputs._words.breakers

    def wait_for_breakers(texts: tuple[str, ...]) -> Any:
        assert go.wait(30)
        return breakers(texts)

    monkeypatch.setattr(llm.inputs._words, "breakers", wait_for_breakers)
    for content in (
        '{"prompt": "x", "structured_outputs": {"regex": "ab"}}',
        '{"prompt": "x", "structured\\u005foutputs": {"regex": "ab"}}',  # JSON has several ways to write a name
        '{"prompt": "x", "allowed_token_ids": [97], "max_tokens": 2, "dry_multiplier": 1}',
    ):
        texts: list[str] = []

        def ask(content: str = content, texts: list[str] = texts) -> None:
            answer = client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"}).json()
            texts.append(answer["choices"][0]["text"])

        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(3):
            assert client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 1}).status_code == 200
        assert not texts
        go.set()
        thread.join()
        assert texts in (["ab"], ["aa"])
        go.clear()


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": ["xyz"]}, "allowed_token_ids": [5]},
        {"allowed_token_ids": [5], "bad_words": ["a", "b"], "structured_outputs": {"regex": "q"}},
    ],
)
def test_a_form_that_the_other_fields_rule_out_is_the_requests_fault(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "hi", "temperature": 0, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2}).status_code == 200
