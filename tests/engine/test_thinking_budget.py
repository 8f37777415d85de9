"""Reasoning with a budget, through the engine: it ends in time, the answer keeps its form, and nothing else changes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.engines import assert_idle
from engine.guesses import guess_in_all_engines
from engine.jobs import ALONE, Exercised
from hotloop import LLM, Resume, SamplingParams, StructuredOutputsParams
from hotloop.engine.wire import Add, decode_command, encode
from hotloop.errors import InvalidRequestError
from hotloop.request import CompletionOutput, RequestOutput
from tiny_models import write_tiny_model

OPEN = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
CLOSED = OPEN.replace("<think>", "{# <think> #}")
MESSAGES = [{"role": "user", "content": "x y"}]
FORM = StructuredOutputsParams(regex="[ab]{3} the end of it")
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=60, logprobs=2, ignore_eos=True, thinking_budget=7)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template begins the reasoning."""
    path = tmp_path_factory.mktemp("models") / "thinker.gguf"
    return write_tiny_model(path, "llama", formats="Q8_0", metadata={"tokenizer.chat_template": OPEN})


@pytest.fixture(scope="module")
def llm(thinker: Path) -> LLM:
    return LLM(thinker)


def chat(llm: LLM, **params: Any) -> RequestOutput:
    output = llm.chat(MESSAGES, replace(PARAMS, **params))[0]
    assert_idle(llm)
    return output


def num_thought(llm: LLM, choice: CompletionOutput) -> int:
    """Tokens before the end of thinking."""
    for n in range(len(choice.token_ids) + 1):
        if "</think>" in llm.tokenizer.decode(choice.token_ids[:n], skip_special=False):
            return n
    raise AssertionError("no end")


@pytest.mark.parametrize("budget", [0, 1, 7, 30])
def test_reasoning_ends_in_time_and_is_free_until_then(llm: LLM, budget: int) -> None:
    end = llm.tokenizer.encode("</think>", add_special=False)
    free = chat(llm, thinking_budget=None).outputs[0]
    assert "</think>" not in free.text
    choice = chat(llm, thinking_budget=budget).outputs[0]
    assert choice.token_ids[:budget] == free.token_ids[:budget]
    assert choice.token_ids[budget : budget + len(end)] == end
    assert choice.reasoning == free.text[: len(choice.reasoning)]
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(choice.token_ids) == 60
    assert Exercised(llm._core).accepted_tokens > 0, "the end is forced, so it is drafted"
    enough = chat(llm, thinking_budget=1000).outputs
    assert enough == [free]


@pytest.mark.parametrize("params", [{}, {"n": 3}, {"temperature": 0}, {"mirostat": 2}], ids=repr)
def test_the_form_comes_after_it(llm: LLM, thinker: Path, params: dict[str, Any]) -> None:
    outputs = chat(llm, structured_outputs=FORM, ignore_eos=False, **params).outputs
    for choice in outputs:
        assert re.fullmatch("[ab]{3} the end of it", choice.content), choice.text
        assert choice.finish_reason == "stop"
        assert num_thought(llm, choice) <= 7 + len("</think>")
    alone = LLM(thinker, **ALONE)
    assert chat(alone, structured_outputs=FORM, ignore_eos=False, **params).outputs == outputs


def test_an_answer_that_may_begin_to_think(llm: LLM) -> None:
    """It has a budget only if it does; here it is made to."""
    answers = []
    for text in ("<think>", "think>"):
        ids = llm.tokenizer.encode(text, add_special=False)

        def begins(output_token_ids: Any, logits: Any, ids: list[int] = ids) -> Any:
            if len(output_token_ids) < len(ids):
                logits[ids[len(output_token_ids)]] = 1000
            return logits

        params = replace(PARAMS, thinking_budget=2, logits_processors=[begins])
        (output,) = llm.chat(MESSAGES, params, chat_template=CLOSED)
        answers.append(output.outputs[0].text)
    assert re.match("(?s)<think>.*</think>", answers[0])
    assert "</think>" not in answers[1]


@pytest.mark.parametrize("prefix", ["", "\n ", "\v", "\u00a0", "<|im_start|>", "x"])
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_where_readers_see_thinking_it_has_a_budget(llm: LLM, prefix: str, skip_special_tokens: bool) -> None:
    script = llm.tokenizer.encode(f"{prefix}<think>aaaa", parse_special=True, add_special=False)

    def begins(output_token_ids: Any, logits: Any) -> Any:
        if len(output_token_ids) < len(script):
            logits[script[len(output_token_ids)]] = 1000
        return logits

    params = replace(PARAMS, thinking_budget=2, logits_processors=[begins], skip_special_tokens=skip_special_tokens)
    (choice,) = llm.chat(MESSAGES, params, chat_template=CLOSED)[0].outputs
    assert bool(choice.reasoning) == ("</think>" in choice.text) == ("<think>aaaa" not in choice.text)
    assert choice.message is not None
    assert bool(choice.reasoning) == bool(choice.message.num_reasoning_tokens)
    assert bool(choice.reasoning) == (prefix in ("", "\n ") or (prefix == "<|im_start|>" and skip_special_tokens))


@pytest.mark.parametrize("form", [None, FORM], ids=["free", "formed"])
def test_resumed_between_any_two_tokens(llm: LLM, thinker: Path, form: StructuredOutputsParams | None) -> None:
    whole = chat(llm, structured_outputs=form)
    ids = whole.outputs[0].token_ids
    (request,) = llm._inputs.ask({"prompt_token_ids": whole.prompt_token_ids}, replace(PARAMS, thinking_budget=None)).requests
    request.thinking = llm._inputs.ask(_chat(), PARAMS).requests[0].thinking
    request.params = replace(llm._inputs.resolved(PARAMS), structured_outputs=form)
    assert request.thinking is not None
    for length in range(len(ids)):
        request.output_token_ids = ids[:length]
        *_, last = llm.resume(Resume.of(request))
        assert last.output is not None
        assert last.output.outputs[0].token_ids == ids
    assert_idle(llm)


def _chat() -> Any:
    from hotloop.engine.chats import Chat

    return Chat(MESSAGES)


@pytest.fixture
def guessing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guess_in_all_engines(patch)
        yield


def test_batches_preemptions_and_wrong_drafts_change_nothing(thinker: Path, guessing: None) -> None:
    forms = [None, FORM, None]
    params = [
        replace(PARAMS, seed=i, thinking_budget=i % 9, structured_outputs=forms[i % 3], max_tokens=40 + i) for i in range(12)
    ]
    alone = LLM(thinker, **ALONE)
    expected = [alone.chat(MESSAGES, one)[0].outputs for one in params]
    llm = LLM(thinker, block_size=4, kv_cache_memory_bytes=9 * 16 * 256, enable_prefix_caching=False)
    for _ in range(2):
        outputs = llm.chat([MESSAGES] * len(params), params)
        assert [output.outputs for output in outputs] == expected
    exercised = Exercised(llm._core)
    assert exercised.preemptions > 0
    assert exercised.accepted_tokens > 50
    assert exercised.draft_tokens > exercised.accepted_tokens


def test_it_travels_to_an_engine_in_another_process(llm: LLM) -> None:
    (request,) = llm._inputs.ask(_chat(), PARAMS).requests
    message = decode_command(encode(Add([request])))
    assert isinstance(message, Add)
    assert message.requests[0].thinking == request.thinking
    assert message.requests[0].params.thinking_budget == 7


def test_it_is_for_chats_whose_answers_may_think(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="thinking_budget is 7"):
        llm.generate("x", PARAMS)
    with pytest.raises(InvalidRequestError, match="thinking_budget is 7"):
        llm.chat(MESSAGES, PARAMS, chat_template="{{ messages[0].content }}")
    with pytest.raises(InvalidRequestError, match="thinking_budget is -1"):
        SamplingParams(thinking_budget=-1)
