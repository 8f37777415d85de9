"""Tool calls and reasoning over a live server: models that say what they are told, and one that says anything."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotloop import AsyncLLM
from scripted_model import Script, write_scripted_model
from server.live import live_server
from server.serving import Event, choices, finish_reasons, stream, strict_json, text_of
from tiny_models import write_tiny_model

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object", "required": ["city"], "additionalProperties": False,
            "properties": {"city": {"enum": ["Paris"]}},
        },
    },
}  # fmt: skip
OTHER = {"type": "function", "function": {"name": "now"}}
ASK: dict[str, Any] = {"messages": HI, "temperature": 0, "tools": [TOOL, OTHER], "max_tokens": 200}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ '<|im_start|>assistant\n' }}"
)


@contextmanager
def scripted(folder: Path, script: Script, template: str | None = None, **config: Any) -> Iterator[httpx.Client]:
    """A server whose chats are answered with the script."""
    path = folder / "scripted.gguf"
    metadata = {} if template is None else {"tokenizer.chat_template": template}
    write_scripted_model(path, [script], metadata=metadata)
    llm = AsyncLLM(path, max_num_seqs=4, **config)
    try:
        with live_server(llm) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client
    finally:
        llm.close()


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A model that says a sentence, begins a call, in which only the form leads it, and ends."""
    script = ("Let me", " see.", "\n", "<tool_call>", "</tool_call>")
    with scripted(tmp_path_factory.mktemp("caller"), script) as client:
        yield client


@pytest.fixture(scope="module")
def never_tired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A model that calls again and again."""
    with scripted(tmp_path_factory.mktemp("caller"), ("<tool_call>", "</tool_call>", "\n", "<tool_call>")) as client:
        yield client


@pytest.fixture(scope="module")
def anything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A random model."""
    llm = AsyncLLM(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", formats="Q8_0", context_length=2048))
    with live_server(llm) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client
    llm.close()


def answer(client: httpx.Client, **fields: Any) -> Any:
    response = client.post(CHAT, json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def refused(client: httpx.Client, **fields: Any) -> str:
    messages = set()
    for streamed in (False, True):
        response = client.post(CHAT, json={**ASK, "stream": streamed, **fields})
        assert response.status_code == 400, response.text
        messages.add(response.json()["error"]["message"])
    (message,) = messages
    return str(message)


def message_of(events: list[Event], index: int = 0) -> dict[str, Any]:
    """What a stream's deltas add up to, as OpenAI's clients add them."""
    message: dict[str, Any] = {"content": text_of(events, index)}
    for choice in choices(events, index):
        reasoning = choice["delta"].get("reasoning_content")
        if reasoning is not None:
            message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
        for call in choice["delta"].get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call.keys() == {"index", "id", "type", "function"}
                assert call["function"]["arguments"] == ""
                calls.append({key: call[key] for key in ("id", "type", "function")})
            else:
                assert call.keys() == {"index", "function"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def same(message: dict[str, Any]) -> dict[str, Any]:
    """A whole answer's message as a stream would add up to it."""
    return {
        key: value or "" if key == "content" else value for key, value in message.items() if key not in ("role", "refusal")
    }


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


CALLS = ([("get_weather", {"city": "Paris"})], [("now", {})])  # those that the schemas leave


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 3, "return_token_ids": True}], ids=repr)
def test_calls_whole_and_streamed(caller: httpx.Client, fields: dict[str, Any]) -> None:
    whole = answer(caller, seed=5, **fields)
    events = stream(caller, CHAT, {**ASK, "seed": 5, **fields})
    assert len(whole["choices"]) == fields.get("n", 1)
    for choice in whole["choices"]:
        index, message = choice["index"], choice["message"]
        assert message["content"] == "Let me see."
        assert calls_of(message) in CALLS
        assert choice["finish_reason"] == "tool_calls"
        assert finish_reasons(events, index) == ["tool_calls"]
        assert message_of(events, index) == same(message)
        if "logprobs" in fields:
            entries = choice["logprobs"]["content"]
            assert b"".join(bytes(entry["bytes"]) for entry in entries).endswith(b"}\n</tool_call><|im_end|>")
            streamed = [entry for part in choices(events, index) if part["logprobs"] for entry in part["logprobs"]["content"]]
            assert streamed == entries
        if "return_token_ids" in fields:
            ids = [i for part in choices(events, index) for i in part.get("token_ids") or ()]
            assert ids == choice["token_ids"]
    ids = [call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids)


def test_ids_of_calls_repeat_with_the_seed(caller: httpx.Client) -> None:
    def ids(seed: int) -> list[str]:
        return [call["id"] for call in answer(caller, seed=seed)["choices"][0]["message"]["tool_calls"]]

    assert ids(1) == ids(1)
    assert not {*ids(1)} & {*ids(2)}


def test_an_answer_that_is_cut_ends_with_length(never_tired: httpx.Client) -> None:  # known fault B27
    seen = set()
    for max_tokens in range(1, 300, 11):
        (choice,) = answer(never_tired, seed=1, max_tokens=max_tokens)["choices"]
        assert choice["finish_reason"] == "length"
        ids = [call["id"] for call in choice["message"].get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
        seen.add(len(ids))
        events = stream(never_tired, CHAT, {**ASK, "seed": 1, "max_tokens": max_tokens})
        assert message_of(events) == same(choice["message"])
        assert finish_reasons(events) == ["length"]
    assert {0, 1, 2} <= seen
    for stop, num_calls in (("ments", 0), ("}", 1)):
        (stopped,) = answer(never_tired, stop=[stop])["choices"]
        assert (stopped["finish_reason"], len(stopped["message"].get("tool_calls", ()))) == ("stop", num_calls)


def test_choices_of_tools(caller: httpx.Client, never_tired: httpx.Client) -> None:
    (one,) = answer(never_tired, parallel_tool_calls=False)["choices"]
    assert one["finish_reason"] == "tool_calls"
    assert calls_of(one["message"]) in CALLS
    (none,) = answer(caller, tool_choice="none")["choices"]
    assert "<tool_call>" in none["message"]["content"]
    assert (none["finish_reason"], none["message"].get("tool_calls")) == ("stop", None)
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        (must,) = answer(caller, tool_choice=choice, parallel_tool_calls=False)["choices"]
        assert must["finish_reason"] == "tool_calls"
        assert must["message"]["content"] is None
        ((name, arguments),) = calls_of(must["message"])
        assert (name, arguments) == ("now", {}) if choice != "required" else name in ("now", "get_weather")


def test_malformed_calls_are_content(tmp_path: Path) -> None:
    """Without tools nothing is looked for; with them, a call of a tool that there is not cannot be written."""
    script = ("<tool_call>\n", '{"name": "nope", "arguments": {}}', "\n</tool_call>", "</tool_call>")
    with scripted(tmp_path, script) as client:
        (choice,) = answer(client, tools=None)["choices"]
        assert choice["message"]["content"] == "".join(script)
        assert choice["finish_reason"] == "stop"
        (choice,) = answer(client)["choices"]
        assert calls_of(choice["message"]) in CALLS


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"temperature": 1.5, "n": 4}, {"temperature": 1.0, "frequency_penalty": 2.0, "logprobs": True}],
    ids=repr,
)
def test_whatever_a_model_prefers(anything: httpx.Client, fields: dict[str, Any]) -> None:  # known fault B66
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        body = {"tool_choice": choice, "parallel_tool_calls": False, "seed": 3, "max_tokens": 200, **fields}
        whole = answer(anything, **body)
        events = stream(anything, CHAT, {**ASK, **body})
        for part in whole["choices"]:
            ((name, arguments),) = calls_of(part["message"])
            assert part["finish_reason"] == "tool_calls"
            assert arguments.keys() == ({"city"} if name == "get_weather" else set())
            assert message_of(events, part["index"]) == same(part["message"])


def test_tools_do_not_change_an_answer_without_calls(anything: httpx.Client) -> None:
    """Token for token that of the same prompt where nothing looks for calls."""
    for seed in range(4):
        body = {"seed": seed, "temperature": 1.5, "max_tokens": 40, "top_p": 0.95, "return_token_ids": True, "logprobs": True}
        with_tools = answer(anything, **body)
        (choice,) = with_tools["choices"]
        prompt = anything.post("/tokenize", json={"messages": HI, "tools": [TOOL, OTHER]}).json()["tokens"]
        assert len(prompt) == with_tools["usage"]["prompt_tokens"]
        plain = strict_json(
            anything.post("/v1/completions", json={**body, "logprobs": 0, "prompt": prompt}).content
        )  # fmt: skip
        assert plain["choices"][0]["token_ids"] == choice["token_ids"]
        assert plain["choices"][0]["text"] == choice["message"]["content"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert plain["choices"][0]["logprobs"]["token_logprobs"] == logprobs


def test_what_is_refused(anything: httpx.Client) -> None:  # known faults B65, B66, B137
    def of(parameters: Any) -> dict[str, Any]:
        return {"tools": [OTHER, {"type": "function", "function": {"name": "f", "parameters": parameters}}]}

    not_enforced = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"type": "string"}}}}}
    for choice in ("auto", "required"):
        message = refused(anything, **of(not_enforced), tool_choice=choice)
        assert "tools[1].function.parameters.properties.a.items cannot be enforced" in message
    assert "parameters.type is 'array'" in refused(anything, **of({"type": "array"}))
    assert "tool_choice" in refused(anything, tools=None, tool_choice="auto")
    for form in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a+"}}):
        assert "leave one of them out" in refused(anything, tool_choice="required", **form)
    assert "leave one of them out" in refused(anything, structured_outputs={"regex": "a+"})
    assert "enable_thinking" not in refused(anything, chat_template_kwargs={"messages": []})
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert "messages[1].tool_calls[0].function.arguments" in refused(anything, messages=[*HI, turn])


def test_whatever_depth_is_refused_in_words(anything: httpx.Client) -> None:
    """Near Python's own limit one step's decoder or encoder takes what the next one's does not."""
    function = {"name": "f", "arguments": "DEEP"}
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": "DEEP"}}}
    for fields in ({"messages": [*HI, turn]}, {"tools": [tool], "tool_choice": "required"}):
        body = json.dumps({**ASK, **fields})
        for levels in (250, 500, *range(900, 1000)):
            content = body.replace('"DEEP"', '{"items":' * levels + "{}" + "}" * levels)
            response = anything.post(CHAT, content=content, headers={"content-type": "application/json"})
            assert response.status_code == 400, (levels, response.text)


def test_json_or_calls(caller: httpx.Client, anything: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    within = {"structured_outputs": {"json": {**schema, "properties": {"ok": {"type": "string"}}}, "finish_within": 200}}
    for seed in range(4):
        (choice,) = answer(anything, **within, temperature=2.0, seed=seed, max_tokens=220)["choices"]
        assert choice["finish_reason"] != "length"
    for client in (caller, anything):
        for seed in range(4):
            (choice,) = answer(client, response_format=form, temperature=2.0, seed=seed, max_tokens=400)["choices"]
            if choice["finish_reason"] == "stop":
                assert json.loads(choice["message"]["content"]).keys() == {"ok"}
            elif choice["finish_reason"] == "tool_calls":
                assert choice["message"]["content"] is None
                assert calls_of(choice["message"])


def test_a_conversation_with_calls_goes_on(caller: httpx.Client) -> None:
    (choice,) = answer(caller)["choices"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in choice["message"]["tool_calls"]]
    (again,) = answer(caller, messages=[*HI, choice["message"], *results])["choices"]
    assert again["finish_reason"] == "tool_calls"
    assert {call["id"] for call in again["message"]["tool_calls"]}.isdisjoint(
        call["id"] for call in choice["message"]["tool_calls"]
    )


def test_the_format_can_be_chosen(tmp_path: Path) -> None:
    script = ('{"name":', " x")
    with scripted(tmp_path, script, TEMPLATE, tool_format="llama3-json") as client:
        (choice,) = answer(client, parallel_tool_calls=False)["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert calls_of(choice["message"]) in CALLS
        assert choice["message"]["content"] is None
    with scripted(tmp_path, script, TEMPLATE) as client:  # hermes, by the template
        (choice,) = answer(client)["choices"]
        assert choice["message"]["content"] == "".join(script)


# ---- reasoning ------------------------------------------------------------------------------------------------------

THOUGHTS = ("<think>", "\nThe user", " greets <tool_call>.\n", "</think>", "\n\n", "Hello!")
OPENS = TEMPLATE + "<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n{% endif %}"
MAY_OPEN = TEMPLATE + "{# the answer may begin with <think> #}"


@pytest.mark.parametrize(("template", "script"), [(OPENS, THOUGHTS[1:]), (MAY_OPEN, THOUGHTS)], ids=["open", "opens itself"])
def test_reasoning(tmp_path: Path, template: str, script: Script) -> None:
    with scripted(tmp_path, script, template) as client:
        for tools in (None, [TOOL]):
            whole = answer(client, tools=tools, logprobs=True, return_token_ids=True)
            (choice,) = whole["choices"]
            message = choice["message"]
            assert message["reasoning_content"] == "The user greets <tool_call>."
            assert message["content"] == "Hello!"
            assert choice["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(script) - 2}
            assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == whole["usage"]["completion_tokens"]
            body = {**ASK, "tools": tools, "stream_options": {"include_usage": True}}
            events = stream(client, CHAT, body)
            assert message_of(events) == same(message)
            assert events[-1]["usage"]["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
        two = answer(client, n=2)["usage"]
        assert two["completion_tokens_details"] == {"reasoning_tokens": 2 * (len(script) - 2)}
        assert two["completion_tokens"] == 2 * whole["usage"]["completion_tokens"]
        for max_tokens in range(1, len(script)):
            (choice,) = answer(client, max_tokens=max_tokens)["choices"]
            assert message_of(stream(client, CHAT, {**ASK, "max_tokens": max_tokens})) == same(choice["message"])
            assert choice["finish_reason"] == "length"


def test_forms_come_after_the_reasoning(tmp_path: Path) -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}}
    with scripted(tmp_path, ("Hm.", "</think>", "\n\n", "42"), OPENS) as client:
        (choice,) = answer(client, tools=None, **form)["choices"]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert isinstance(json.loads(choice["message"]["content"]), int)
        (choice,) = answer(client, tool_choice="required", parallel_tool_calls=False)["choices"]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert len(calls_of(choice["message"])) == 1


def test_a_budget_ends_the_reasoning(tmp_path: Path) -> None:
    """The script goes on at its place, in the answer now."""
    with scripted(tmp_path, ("a", " b", " c", " d", "</think>", "ok"), OPENS) as client:
        for budget, reasoning in ((2, "a b"), (0, None), (9, "a b c d")):
            whole = answer(client, tools=None, thinking_budget=budget)
            (choice,) = whole["choices"]
            assert choice["message"].get("reasoning_content") == reasoning
            assert choice["message"]["content"].endswith("ok")
            assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": min(budget, 4) + 1}
            body = {**ASK, "tools": None, "thinking_budget": budget}
            assert message_of(stream(client, CHAT, body)) == same(choice["message"])
    with scripted(tmp_path, ("Hello",), TEMPLATE) as client:
        assert "thinking_budget" in refused(client, tools=None, thinking_budget=3)


def test_a_conversation_without_thinking(tmp_path: Path) -> None:
    with scripted(tmp_path, ("Hello", "</think>", "!"), OPENS) as client:
        (choice,) = answer(client, tools=None, chat_template_kwargs={"enable_thinking": False})["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hello</think>!", "refusal": None}
        (choice,) = answer(client, tools=None, chat_template_kwargs={"enable_thinking": True})["choices"]
        assert choice["message"]["reasoning_content"] == "Hello"
