"""litellm and langchain-openai."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
from checks import Server, check
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAI
from litellm.exceptions import AuthenticationError, BadRequestError
from openai_client import MESSAGES, SAMPLED
from pydantic import SecretStr


@check("litellm: chat")
def litellm_chat(server: Server) -> str:
    options: dict[str, Any] = {"api_base": server.v1, "api_key": server.api_key, "messages": MESSAGES, **SAMPLED}
    texts = []
    for provider in ("openai", "hosted_vllm"):
        plain: Any = litellm.completion(f"{provider}/{server.model}", **options)
        chunks: Any = list(
            litellm.completion(f"{provider}/{server.model}", stream=True, stream_options={"include_usage": True}, **options)
        )
        whole: Any = litellm.stream_chunk_builder(chunks)
        assert whole.choices[0].message.content == plain.choices[0].message.content
        assert whole.choices[0].finish_reason == plain.choices[0].finish_reason
        assert whole.usage.completion_tokens == plain.usage.completion_tokens
        waited: Any = asyncio.run(litellm.acompletion(f"{provider}/{server.model}", **options))
        texts += [plain.choices[0].message.content, waited.choices[0].message.content]
    assert len(set(texts)) == 1
    return repr(texts[0][:40])


@check("litellm: completions")
def litellm_completions(server: Server) -> str:
    model = f"text-completion-openai/{server.model}"
    options: dict[str, Any] = {"api_base": server.v1, "api_key": server.api_key, "max_tokens": 8, "temperature": 0}
    plain: Any = litellm.text_completion(model=model, prompt="The capital of France is", **options)
    parts: Any = litellm.text_completion(model=model, prompt="The capital of France is", stream=True, **options)
    text = plain.choices[0].text
    assert "".join(part.choices[0].text or "" for part in parts) == text
    return repr(text)


@check("litellm: errors")
def litellm_errors(server: Server) -> str:
    options: dict[str, Any] = {"api_base": server.v1, "messages": MESSAGES}
    seen = []
    for fields, kind in (
        ({"api_key": server.other_key}, AuthenticationError),
        ({"api_key": server.api_key, "temperature": -1}, BadRequestError),
    ):
        try:
            litellm.completion(f"openai/{server.model}", **options, **fields, num_retries=0)
        except kind as error:
            seen.append(type(error).__name__)
        else:
            raise AssertionError(f"no {kind.__name__}")
    return ", ".join(seen)


@check("langchain: chat")
def langchain_chat(server: Server) -> str:
    chat = ChatOpenAI(
        model=server.model, base_url=server.v1, api_key=SecretStr(server.api_key), max_retries=0, temperature=0.9, seed=7,
        max_completion_tokens=24, stream_usage=True,
    )  # fmt: skip
    messages = [("system", "Answer briefly."), ("human", "Why is the sky blue?")]
    answer = chat.invoke(messages)
    assert answer.usage_metadata
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    whole: AIMessageChunk | None = None
    for chunk in chat.stream(messages):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == answer.content
    assert whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert [other.content for other in chat.batch([messages] * 3)] == [answer.content] * 3
    assert asyncio.run(chat.ainvoke(messages)).content == answer.content
    with_logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(messages)
    assert len(with_logprobs.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
    return repr(str(answer.content)[:40])


@check("langchain: completions")
def langchain_completions(server: Server) -> str:
    model = OpenAI(
        model=server.model, base_url=server.v1, api_key=SecretStr(server.api_key), max_retries=0, temperature=0, max_tokens=8
    )
    prompts = ["The capital of France is", "Two plus two is"]
    texts = model.batch([*prompts])
    assert texts == [model.invoke(prompt) for prompt in prompts]
    assert "".join(model.stream(prompts[0])) == texts[0]
    return repr(texts)
