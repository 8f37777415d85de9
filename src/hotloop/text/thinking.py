"""Reasoning: the part of an answer between <think> and </think>, and what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotloop.request import MessagePart, Thinking
from hotloop.structured_outputs import WHITE_SPACE
from hotloop.text.tokenizer import Tokenizer

BEGIN, END = "<think>", "</think>"
_TAIL_TOKENS = 32  # of a prompt; what a template writes after the last message


def thinks(template_source: str) -> bool:
    """Whether a chat template is of a model that may think before it answers."""
    return BEGIN in template_source or END in template_source


def thinking_after(prompt_token_ids: Sequence[int], tokenizer: Tokenizer, template_source: str) -> Thinking | None:
    """How the answer to a rendered conversation may think; None if the model does not, or the prompt has ended that."""
    if not thinks(template_source):
        return None
    tail = tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special=False).rstrip()
    if tail.endswith(END):
        return None
    begin_ids, end_ids = (_usual_tokens(tokenizer, text) for text in (BEGIN, END))
    return Thinking(begin_ids, end_ids, tail.endswith(BEGIN))


def _usual_tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    token_id = tokenizer.token_id(text)
    return tuple(tokenizer.encode(text, add_special=False)) if token_id is None else (token_id,)


def longest_beginning(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that is the beginning of ``marker``, but not all of it."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)


class ReasoningSplitter:
    """Splits an answer that arrives in pieces of any size into reasoning and the rest.

    Markers go, and so do line ends next to them. Text is held back only while it may belong to a marker or such line ends.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self._held = ""
        self._state = "thinking" if thinking.is_open else "undecided"
        self._is_at_start = True  # of the reasoning, or of the rest after it: line ends go

    def feed(self, text: str) -> list[MessagePart]:
        """What became certain."""
        self._held += text
        parts: list[MessagePart] = []
        if self._state == "undecided":
            begin, start = self._thinking.begin, self._held.lstrip(WHITE_SPACE)
            if start.startswith(begin):
                self._held, self._state = start[len(begin) :], "thinking"
            elif begin.startswith(start):
                return []
            else:
                self._state, self._is_at_start = "answering", False
        if self._state == "thinking":
            reasoning, marker, rest = self._held.partition(self._thinking.end)
            if marker:
                self._add(parts, "reasoning", reasoning.rstrip("\n"))
                self._held, self._state, self._is_at_start = rest, "answering", True
            else:
                certain = reasoning[: len(reasoning) - longest_beginning(reasoning, self._thinking.end)].rstrip("\n")
                self._held = reasoning[len(certain) :]
                self._add(parts, "reasoning", certain)
        if self._state == "answering":
            self._add(parts, "content", self._held)
            self._held = ""
        return parts

    def finish(self) -> list[MessagePart]:
        """The end of the answer: what was held back."""
        parts: list[MessagePart] = []
        self._add(parts, "reasoning" if self._state == "thinking" else "content", self._held)
        self._held = ""
        return parts

    def _add(self, parts: list[MessagePart], kind: str, text: str) -> None:
        if self._is_at_start:
            text = text.lstrip("\n")
        if text:
            self._is_at_start = False
            parts.append(MessagePart("reasoning" if kind == "reasoning" else "content", text))


class ReasoningCounter:
    """How many of the output tokens are reasoning: those up to the one in which it ends, whatever sizes they arrive in."""

    def __init__(self, thinking: Thinking, shown_bytes: Callable[[int], bytes]) -> None:
        """shown_bytes: what a token contributes to the text."""
        self._begin, self._end = thinking.begin.encode(), thinking.end.encode()
        self._shown_bytes = shown_bytes
        self._text = b""
        self._state = "thinking" if thinking.is_open else "undecided"
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self._state == "answering":
                return
            self.num_tokens += 1
            self._text += self._shown_bytes(token_id)
            if self._state == "undecided":
                start = self._text.lstrip(WHITE_SPACE.encode())
                if start.startswith(self._begin):
                    self._text, self._state = start[len(self._begin) :], "thinking"
                elif not self._begin.startswith(start):
                    self.num_tokens, self._state = 0, "answering"
            if self._state == "thinking":
                if self._end in self._text:
                    self._state = "answering"
                self._text = self._text[1 - len(self._end) :]

    def num_within(self, num_output_tokens: int) -> int:
        """Of the first so many: those that belong to the output."""
        return 0 if self._state == "undecided" else min(self.num_tokens, num_output_tokens)
