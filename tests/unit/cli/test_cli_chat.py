"""`hotloop chat`: what the model is told in each turn, and what becomes of a turn that fails or is stopped."""

import io
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.chat import converse
from hotloop.errors import InvalidRequestError
from hotloop.request import MessagePart
from hotloop.sampling_params import SamplingParams


class Chunk:
    def __init__(self, text: str, parts: list[MessagePart] | None = None) -> None:
        self.text = text
        self.parts = parts


class FakeLLM:
    """Answers the n-th question with "answer n", in two chunks, or raises between them."""

    has_chat_template = True
    path = Path("fake.gguf")

    def __init__(self, raises: dict[int, BaseException] | None = None) -> None:
        self.raises = raises or {}
        self.seen: list[list[dict[str, str]]] = []
        self.closed = 0

    def stream_chat(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[Any]:
        self.seen.append(deepcopy(messages))
        number = len(self.seen)
        try:
            yield Chunk("answer")
            if number in self.raises:
                raise self.raises[number]
            yield Chunk(f" {number}")
        finally:
            self.closed += 1


def chat(monkeypatch: pytest.MonkeyPatch, llm: FakeLLM, text: str, system: str | None = None) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    converse(llm, SamplingParams(), system)  # type: ignore[arg-type]
    assert llm.closed == len(llm.seen)


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def test_each_turn_sees_the_whole_conversation(monkeypatch, capsys) -> None:
    llm = FakeLLM()
    chat(monkeypatch, llm, "one\n\n  \ntwo\n/reset\nthree\n", system="be brief")
    opening = [{"role": "system", "content": "be brief"}]
    assert llm.seen == [
        opening + turns("one"),
        opening + turns("one", "answer 1", "two"),
        opening + turns("three"),
    ]
    assert capsys.readouterr().out == "answer 1\nanswer 2\nanswer 3\n"


def test_help_is_answered_without_the_model(monkeypatch, capsys) -> None:
    llm = FakeLLM()
    chat(monkeypatch, llm, "one\n /help \ntwo /help\n")
    assert llm.seen == [turns("one"), turns("one", "answer 1", "two /help")]
    shown = capsys.readouterr()
    assert shown.out == "answer 1\nanswer 2\n"
    assert "/reset starts over" in shown.err


def test_a_stopped_answer_stays_as_far_as_it_came(monkeypatch, capsys) -> None:
    llm = FakeLLM({1: KeyboardInterrupt()})
    chat(monkeypatch, llm, "one\ntwo\n/exit\nnever\n")
    assert llm.seen == [turns("one"), turns("one", "answer", "two")]
    assert capsys.readouterr().out == "answer [stopped]\nanswer 2\n"


def test_reasoning_is_dimmed_and_not_said_again(monkeypatch, capsys) -> None:
    llm = FakeLLM()
    parts = [[MessagePart("reasoning", "hm")], [MessagePart("reasoning", "!"), MessagePart("content", "yes")], []]

    def stream_chat(messages: list[dict[str, str]], params: SamplingParams) -> Iterator[Any]:
        llm.seen.append(deepcopy(messages))
        yield from (Chunk("raw", part) for part in parts)

    monkeypatch.setattr(llm, "stream_chat", stream_chat)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    converse(llm, SamplingParams(), None)  # type: ignore[arg-type]
    assert llm.seen[1] == turns("one", "yes", "two")
    assert capsys.readouterr().out == "\x1b[2mhm!\n\n\x1b[0myes\n" * 2


def test_a_turn_that_fails_is_shown_and_taken_back(monkeypatch, capsys) -> None:
    llm = FakeLLM({2: InvalidRequestError("too \x1b[2J long")})
    chat(monkeypatch, llm, "one\ntwo\nthree\n")
    assert llm.seen[1:] == [turns("one", "answer 1", "two"), turns("one", "answer 1", "three")]
    assert "hotloop: too \\x1b[2J long\n" in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch) -> None:
    with pytest.raises(ZeroDivisionError):
        chat(monkeypatch, FakeLLM({1: ZeroDivisionError()}), "one\n")


def test_a_model_without_a_template_is_refused(monkeypatch) -> None:
    llm = FakeLLM()
    llm.has_chat_template = False
    with pytest.raises(InvalidRequestError, match=r"fake.gguf has no chat template; use `hotloop run"):
        chat(monkeypatch, llm, "one\n")
