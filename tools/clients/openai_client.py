"""The `openai` package, with its answers validated against its own types."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from checks import Server, check

MESSAGES: Any = [{"role": "user", "content": "Why is the sky blue?"}]
SAMPLED: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 7}


def client(server: Server, **options: Any) -> openai.OpenAI:
    defaults = {"api_key": server.api_key, "max_retries": 0, "timeout": 60, "_strict_response_validation": True}
    return openai.OpenAI(base_url=server.v1, **{**defaults, **options})


def refusal(kind: type[openai.APIStatusError], call: Any) -> str:
    """The message of the error that a call must end with."""
    body: Any = None
    try:
        call()
    except kind as error:
        body = error.body
    assert isinstance(body, dict), f"no {kind.__name__} with OpenAI's error object"
    assert {"message", "type", "param", "code"} <= body.keys(), body
    return str(body["message"])


@check("openai: models")
def models(server: Server) -> str:
    with client(server) as api:
        ids = [model.id for model in api.models.list()]
        assert server.model in ids
        assert api.models.retrieve(server.model).object == "model"
        refusal(openai.NotFoundError, lambda: api.models.retrieve("no-such-model"))
    return ", ".join(ids)


@check("openai: chat")
def chat(server: Server) -> str:
    with client(server) as api:
        answer, again = (api.chat.completions.create(model=server.model, messages=MESSAGES, **SAMPLED) for _ in "12")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.content == again.choices[0].message.content, "a seed did not repeat its answer"
    assert choice.finish_reason in ("stop", "length")
    assert answer.id != again.id
    assert (answer.object, answer.model) == ("chat.completion", server.model)
    assert answer.system_fingerprint
    assert answer.usage
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens
    assert again.usage
    assert again.usage.prompt_tokens_details
    extra = answer.model_extra or {}
    assert extra["seed"] == 7
    assert extra["timings"]["predicted_n"] == answer.usage.completion_tokens
    return repr(choice.message.content[:40])


@check("openai: chat, streamed")
def chat_stream(server: Server) -> str:
    with client(server) as api:
        plain = api.chat.completions.create(model=server.model, messages=MESSAGES, **SAMPLED)
        chunks = list(
            api.chat.completions.create(
                model=server.model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SAMPLED
            )
        )
    *parts, last = chunks
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert last.choices == []
    assert last.usage
    assert plain.usage
    assert last.usage.completion_tokens == plain.usage.completion_tokens
    assert all(chunk.usage is None for chunk in parts)
    deltas = [chunk.choices[0].delta for chunk in parts]
    assert deltas[0].role == "assistant"
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == plain.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in parts]
    assert reasons[:-1] == [None] * (len(parts) - 1)
    assert reasons[-1] == plain.choices[0].finish_reason
    assert not deltas[-1].content
    return f"{len(chunks)} chunks"


@check("openai: chat, the stream helper")
def chat_stream_helper(server: Server) -> str:
    """The helper takes an answer that max_tokens ends for an error."""
    options: dict[str, Any] = {"n": 2, "stop": [" is", " a"], "temperature": 0}
    with client(server) as api, api.chat.completions.stream(model=server.model, messages=MESSAGES, **options) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert events.count("content.done") == 2
    assert [choice.index for choice in final.choices] == [0, 1]
    return f"{len(events)} events"


@check("openai: chat, n and logprobs")
def chat_logprobs(server: Server) -> str:
    options: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 3, **SAMPLED}
    with client(server) as api:
        plain = api.chat.completions.create(model=server.model, messages=MESSAGES, **options)
        chunks = list(api.chat.completions.create(model=server.model, messages=MESSAGES, stream=True, **options))
    assert [choice.index for choice in plain.choices] == [0, 1]
    assert plain.choices[0].message.content != plain.choices[1].message.content
    for choice in plain.choices:
        assert choice.logprobs
        entries = choice.logprobs.content or []
        assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == choice.message.content
        for entry in entries:
            values = [top.logprob for top in entry.top_logprobs]
            assert len(values) == 3
            assert values == sorted(values, reverse=True)
            assert max(values) >= entry.logprob
        streamed = [
            entry
            for chunk in chunks
            for part in chunk.choices
            if part.index == choice.index and part.logprobs
            for entry in part.logprobs.content or []
        ]
        assert [(e.token, e.logprob) for e in streamed] == [(e.token, e.logprob) for e in entries]
    assert plain.usage
    return f"{plain.usage.completion_tokens} tokens"


@check("openai: tool calls, whole and streamed")
def tool_calls(server: Server) -> str:
    city = {"type": "string", "maxLength": 20}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("get_weather", "get_time")
    ]
    named = {"type": "function", "function": {"name": "get_time"}}
    options: dict[str, Any] = {**SAMPLED, "max_tokens": 200, "tools": tools, "parallel_tool_calls": False}
    shown = []
    with client(server) as api:
        for tool_choice, names in (("required", {"get_weather", "get_time"}), (named, {"get_time"})):
            plain = api.chat.completions.create(model=server.model, messages=MESSAGES, tool_choice=tool_choice, **options)
            (choice,) = plain.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content is None
            (call,) = choice.message.tool_calls or []
            assert call.type == "function"
            assert call.function.name in names
            assert json.loads(call.function.arguments).keys() == {"city"}
            chunks = list(
                api.chat.completions.create(
                    model=server.model, messages=MESSAGES, tool_choice=tool_choice, stream=True, **options
                )
            )
            first, *others = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
            assert first.function
            assert (first.index, first.id, first.type) == (0, call.id, "function")
            assert (first.function.name, first.function.arguments) == (call.function.name, "")
            pieces = [part.function.arguments or "" for part in others if part.function]
            assert "".join(pieces) == call.function.arguments
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            shown.append(f"{call.function.name}({call.function.arguments})")
        # What a client sends back.
        messages = [*MESSAGES, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
        answer = api.chat.completions.create(model=server.model, messages=messages, tools=tools, max_tokens=8)
        assert answer.choices[0].message
    return "; ".join(shown)


@check("openai: completions")
def completions(server: Server) -> str:
    prompts = ["The capital of France is", "Two plus two is"]
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logprobs": 2}
    with client(server) as api:
        solo = [api.completions.create(model=server.model, prompt=prompt, **options) for prompt in prompts]
        both = api.completions.create(model=server.model, prompt=prompts, n=2, **options)
        echo = api.completions.create(model=server.model, prompt=prompts[0], echo=True, max_tokens=8, temperature=0)
        stopped = api.completions.create(model=server.model, prompt=prompts[0], stop=[" is"], max_tokens=8, temperature=0)
    # The package's type of a chunk has no null finish_reason, which OpenAI itself sends.
    with client(server, _strict_response_validation=False) as api:
        chunks = list(api.completions.create(model=server.model, prompt=prompts, stream=True, **options))
    texts = [answer.choices[0].text for answer in solo]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices] == [texts[0]] * 2 + [texts[1]] * 2
    for index, text in enumerate(texts):
        parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(part.text for part in parts) == text
        assert parts[-1].finish_reason == solo[index].choices[0].finish_reason
    assert echo.choices[0].text == prompts[0] + texts[0]
    logprobs = solo[0].choices[0].logprobs
    assert logprobs
    assert logprobs.tokens
    assert "".join(logprobs.tokens) == texts[0]
    assert logprobs.token_logprobs
    assert logprobs.top_logprobs
    tops = zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    assert all(value == max(top.values()) for value, top in tops), "greedy tokens are not the top ones"
    assert " is" not in stopped.choices[0].text
    return repr(texts)


@check("openai: errors")
def errors(server: Server) -> str:
    with client(server) as api, client(server, api_key=server.other_key) as stranger:

        def ask(**fields: Any) -> Any:
            return lambda: api.chat.completions.create(**{"model": server.model, "messages": MESSAGES, **fields})

        refusal(openai.AuthenticationError, lambda: stranger.models.list())
        refusal(openai.NotFoundError, ask(model="no-such-model"))
        refusal(openai.NotFoundError, lambda: api.embeddings.create(model=server.model, input="a"))
        refusal(openai.NotFoundError, lambda: api.responses.create(model=server.model, input="a"))
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
        message = refusal(openai.BadRequestError, ask(tools=[tool]))
        assert "tools[0].function.parameters" in message
        assert "tool_choice" in refusal(openai.BadRequestError, ask(tool_choice="auto"))
        assert "modalities" in refusal(openai.BadRequestError, ask(modalities=["audio"]))
        assert "temperature" in refusal(openai.BadRequestError, ask(temperature=-1))
        assert "temperature" in refusal(openai.BadRequestError, ask(temperature=-1, stream=True))
        assert "messages" in refusal(openai.BadRequestError, ask(messages=[]))
        assert "temperature" in refusal(openai.BadRequestError, ask(extra_body={"temprature": 1}))
    return message


@check("openai: asyncio, 16 streams and one that leaves")
def concurrent_streams(server: Server) -> str:
    async def read(api: openai.AsyncOpenAI, seed: int, leave_after: int | None = None) -> str:
        stream = await api.chat.completions.create(
            model=server.model, messages=MESSAGES, stream=True, seed=seed, max_tokens=32, temperature=0.9
        )
        text = ""
        async with stream:
            num_chunks = 0
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                num_chunks += 1
                if num_chunks == leave_after:
                    break
        return text

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.v1, api_key=server.api_key, max_retries=0) as api:
            leaver = asyncio.create_task(read(api, 0, leave_after=3))
            texts = await asyncio.gather(*(read(api, seed % 4) for seed in range(16)))
            await leaver
            return texts

    texts = asyncio.run(run())
    assert all(texts)
    assert texts[:4] == texts[4:8] == texts[8:12] == texts[12:], "one seed gave different answers"
    return f"{sum(map(len, texts))} characters"
