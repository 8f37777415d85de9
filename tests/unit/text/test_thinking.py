"""Reasoning and the rest of an answer, in pieces of any size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.request import AssistantMessage, Thinking
from hotloop.text.message_parser import MessageForm, MessageParser, call_ids
from hotloop.text.thinking import ReasoningCounter, thinking_after
from hotloop.text.tokenizer import Tokenizer
from hotloop.text.tools.formats import format_for
from hotloop.text.tools.use import tool_use
from stub_tokenizer import StubTokenizer
from tiny_tokenizer import tokenizer_metadata

OPEN, CLOSED = Thinking((1,), (2,), True), Thinking((1,), (2,), False)
USE = tool_use([{"type": "function", "function": {"name": "f"}}])
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def read(thinking: Thinking | None, *pieces: str, with_tools: bool = False) -> tuple[str, str, int]:
    """reasoning, content, number of calls."""
    form = MessageForm(thinking, USE, format_for("")) if with_tools else MessageForm(thinking)
    parser = MessageParser(form, call_ids([1, 2], 3, 0))
    message = AssistantMessage()
    for piece in pieces:
        message.add(parser.feed(piece))
    message.add(parser.finish())
    return message.reasoning, message.content, len(message.tool_calls)


@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "content"),
    [
        (OPEN, "\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (OPEN, "Hm.\n\nSo</think>Yes.\n", "Hm.\n\nSo", "Yes.\n"),
        (OPEN, "</think>Yes", "", "Yes"),
        (OPEN, "\n\n</think>\n\nYes", "", "Yes"),
        (OPEN, "Hm. </thi", "Hm. </thi", ""),
        (OPEN, "Hm.\n", "Hm.\n", ""),
        (OPEN, "a</think>b</think>c", "a", "b</think>c"),
        (CLOSED, "<think>\nHm.\n</think>\n\nYes", "Hm.", "Yes"),
        (CLOSED, "\n <think>Hm", "Hm", ""),
        (CLOSED, "Yes<think>no</think>", "", "Yes<think>no</think>"),
        (CLOSED, "\n\nYes", "", "\n\nYes"),
        (CLOSED, " <thi", "", " <thi"),
        (CLOSED, "", "", ""),
    ],
)
def test_splitting(thinking: Thinking, text: str, reasoning: str, content: str) -> None:
    assert read(thinking, text) == (reasoning, content, 0)
    assert read(thinking, *text) == (reasoning, content, 0)


def test_tools_count_after_the_end_of_thinking_only() -> None:
    assert read(OPEN, f"a{CALL}</think>\n\nb{CALL}", with_tools=True) == (f"a{CALL}", "b", 1)
    assert read(None, f"</think>{CALL}", with_tools=True) == ("", "</think>", 1)


PIECES = ["<think>", "</think>", "</", "<", "\n", " ", "x", CALL, "<tool_call>", "é"]


@given(st.sampled_from([OPEN, CLOSED, None]), st.lists(st.sampled_from(PIECES), max_size=8), st.data())
def test_pieces_do_not_matter(thinking: Thinking | None, pieces: list[str], data: Any) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(thinking, *split, with_tools=True) == read(thinking, text, with_tools=True)


@pytest.mark.parametrize(
    ("thinking", "tokens", "num_reasoning"),
    [
        (OPEN, ["Hm", ".", "</think>", "Yes"], 3),
        (OPEN, ["Hm", "</thi", "nk>\n", "Yes"], 3),
        (OPEN, ["Hm", "more"], 2),
        (CLOSED, ["<think>", "Hm", "</think>", "Yes"], 3),
        (CLOSED, ["<th", "ink>a", "</think>"], 3),
        (CLOSED, ["Yes", "<think>"], 0),
        (CLOSED, ["<th"], 0),
    ],
)
def test_reasoning_tokens_are_counted_alike_in_steps_of_any_size(
    thinking: Thinking, tokens: list[str], num_reasoning: int
) -> None:
    for size in range(1, len(tokens) + 1):
        counter = ReasoningCounter(thinking, StubTokenizer(tokens).token_bytes)
        for start in range(0, len(tokens), size):
            counter.push(range(start, min(start + size, len(tokens))))
        assert counter.num_within(len(tokens)) == num_reasoning
        assert counter.num_within(1) == min(1, num_reasoning)


def test_ids_of_calls_follow_from_the_request() -> None:
    answers = [call_ids(prompt, seed, choice) for prompt in ([1], [1, 2]) for seed in (1, 2) for choice in (0, 1)]
    assert len({ids(index) for ids in answers for index in (0, 1)}) == 16
    assert call_ids([1], 2, 0)(1) == call_ids([1], 2, 0)(1)
    prompt = [1, 2]
    ids = call_ids(prompt, 2, 0)
    prompt.append(3)
    assert ids(0) == call_ids([1, 2, 3], 2, 0)(0), "the prompt is looked at when there is a call"


@pytest.mark.parametrize(
    ("prompt", "is_open"), [("user\n<think>\n", True), ("user\n", False), ("<think>\n\n</think>\n\n", None)]
)
def test_how_an_answer_may_think_is_up_to_the_end_of_its_prompt(prompt: str, is_open: bool | None) -> None:
    """Where the prompt has ended the reasoning there is none, whatever the answer begins with."""
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(300))
    ids = tokenizer.encode(prompt, add_special=False)
    thinking = thinking_after(ids, tokenizer, "... <think> ...")
    assert (None if thinking is None else thinking.is_open) == is_open
    assert thinking_after(ids, tokenizer, "a template that knows no reasoning") is None
