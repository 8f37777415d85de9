"""Tool calls through LLM and AsyncLLM: the same calls on every path, and free text as it is without tools."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.engines import assert_idle
from hotloop import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from hotloop.engine.chats import Chat
from hotloop.engine.resume import Resume
from hotloop.errors import InvalidRequestError
from hotloop.request import AssistantMessage, CompletionOutput, Request
from hotloop.text.message_parser import merged_parts
from tiny_models import write_tiny_model

HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "required": ["a"], "additionalProperties": False,
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, 2.5, None]}},
    }}},
    {"type": "function", "function": {"name": "g"}},
]  # fmt: skip
CALL: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_model(folder / "tiny.gguf", "llama", formats="Q8_0", context_length=2048)


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": 1, "max_tokens": 200, **values})


def is_call_of_tools(choice: CompletionOutput) -> bool:
    (call,) = choice.tool_calls
    arguments = json.loads(call.arguments)
    assert choice.content == ""
    assert call.arguments in choice.text
    return arguments == {} if call.name == "g" else call.name == "f" and {"a"} <= arguments.keys() <= {"a", "b"}


@pytest.mark.parametrize(
    "values",
    [{}, {"temperature": 0}, {"n": 4, "temperature": 2.0}, {"logprobs": 2, "frequency_penalty": 1.0, "ignore_eos": True}],
)
def test_a_call_is_the_whole_answer(llm: LLM, values: dict[str, Any]) -> None:
    (output,) = llm.chat(HI, params(**values), **CALL)
    for choice in output.outputs:
        assert is_call_of_tools(choice)
        assert choice.finish_reason == "tool_calls"
        assert (choice.logprobs is not None and len(choice.logprobs)) == ("logprobs" in values and len(choice.token_ids))
    assert len({call.id for choice in output.outputs for call in choice.tool_calls}) == len(output.outputs)
    (again,) = llm.chat(HI, params(**values), **CALL)
    assert again.outputs == output.outputs
    assert_idle(llm)


def test_streams_add_up_to_the_answer(llm: LLM) -> None:
    chunks = list(llm.stream_chat(HI, params(n=2), **CALL))
    (whole,) = llm.chat(HI, params(n=2), **CALL)
    for choice in whole.outputs:
        parts = [part for chunk in chunks if chunk.index == choice.index for part in chunk.parts or ()]
        message = AssistantMessage()
        message.add(parts)
        assert message == choice.message
        assert [part.kind for part in merged_parts(parts)] == ["call", "arguments"]
        assert "".join(chunk.text for chunk in chunks if chunk.index == choice.index) == choice.text


def test_asyncio(model: Path, llm: LLM) -> None:
    async def run() -> CompletionOutput:
        async with AsyncLLM(model) as other:
            async for chunk in other.chat(HI, params(), **CALL):
                if chunk.output is not None:
                    return chunk.output.outputs[0]
        raise AssertionError

    assert asyncio.run(run()) == llm.chat(HI, params(), **CALL)[0].outputs[0]


def test_free_text_is_what_it_is_without_tools(llm: LLM) -> None:
    """Bit for bit, logprobs too, whatever the sampling."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.5, "min_p": 0.01, "repetition_penalty": 1.2},
        {"temperature": 1.0, "mirostat": 2}, {"temperature": 1.2, "top_k": 30, "n": 3, "min_tokens": 30},
    ]  # fmt: skip
    for values in kinds:
        wanted = params(max_tokens=40, logprobs=3, **values)
        (with_tools,) = llm.chat(HI, wanted, tools=TOOLS)
        (plain,) = llm.generate([with_tools.prompt_token_ids], wanted)
        for a, b in zip(with_tools.outputs, plain.outputs, strict=True):
            assert (a.token_ids, a.text, a.logprobs, a.finish_reason) == (b.token_ids, b.text, b.logprobs, b.finish_reason)
            assert (a.content, a.tool_calls) == (b.text, [])


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_calls_are_those_that_readers_of_the_text_see(llm: LLM, skip_special_tokens: bool) -> None:
    """A control token within a marker, which the text is without, hides nothing from the constraint."""
    (hidden,) = llm.tokenizer.encode("<|im_start|>", parse_special=True, add_special=False)
    script = [*b"<tool", hidden, *b'_call>\n{"name": "f", "arguments": {"c": 1}}</tool_call>']

    def scripted(output_token_ids: Any, logits: Any) -> Any:
        logits[script[len(output_token_ids) % len(script)]] = 1000
        return logits

    wanted = params(logits_processors=[scripted], max_tokens=len(script), skip_special_tokens=skip_special_tokens)
    (choice,) = llm.chat(HI, wanted, tools=TOOLS)[0].outputs
    if skip_special_tokens:
        (call,) = choice.tool_calls
        assert call.name == "f"
        assert '"c"' not in call.arguments
    else:
        assert choice.token_ids == script
        assert not choice.tool_calls


def test_a_resumed_answer_goes_on_with_its_call(llm: LLM) -> None:
    ask = llm._inputs.ask(Chat(HI, **CALL), params())
    request = ask.requests[0]
    (whole,) = llm.chat(HI, params(), **CALL)
    ids = whole.outputs[0].token_ids
    for length in range(0, len(ids), 3):
        begun = Request(
            request.request_id, request.prompt_token_ids, request.params, request.seed, request.max_tokens,
            request.stop_token_ids, output_token_ids=ids[:length],
        )  # fmt: skip
        last = list(llm.resume(Resume.of(begun)))[-1]
        assert last.output is not None
        assert last.output.outputs[0].token_ids == ids
        assert last.output.outputs[0].text == whole.outputs[0].text


def test_what_cannot_be_is_refused_before_anything_runs(llm: LLM) -> None:
    form = StructuredOutputsParams(regex="a+")
    for options, values, message in (
        ({"tools": TOOLS, "tool_choice": "h"}, {}, "tool_choice is 'h'"),
        ({"tool_choice": "auto"}, {}, "without tools"),
        (CALL, {"structured_outputs": form}, "leave one of them out"),
        ({"tools": TOOLS}, {"structured_outputs": form}, "leave one of them out"),
        ({"chat_template_kwargs": {"tools": []}}, {}, "chat_template_kwargs has 'tools'"),
        ({}, {"thinking_budget": 5}, "does not think"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            llm.chat(HI, params(**values), **options)
    with pytest.raises(InvalidRequestError, match="for chats only"):
        llm.generate("a", params(thinking_budget=5))
    with pytest.raises(InvalidRequestError, match="tool_format is 'xml'"):
        LLM(llm.path, tool_format="xml")
    assert_idle(llm)


@pytest.mark.real_model
def test_a_real_model_calls(model_path: Any) -> None:
    llm = LLM(model_path("qwen2.5-coder-1.5b"), max_model_len=1024, max_num_seqs=2)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}},
    }}}  # fmt: skip
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60), tools=[tool], tool_choice="required")
    call = output.outputs[0].tool_calls[0]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
