"""MessageParser: the text of a chat's answer, which arrives in pieces of any size, as content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

from hotloop.request import MessagePart, Thinking
from hotloop.text.thinking import ReasoningSplitter
from hotloop.text.tools.format import CallParser, ToolFormat
from hotloop.text.tools.use import ToolUse


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a chat's answers are made of. thinking: if they may have reasoning. use, format: of its tools, if it has some.
    visible_ids: control tokens whose text the parser needs to see."""

    thinking: Thinking | None
    use: ToolUse | None = None
    format: ToolFormat | None = None
    visible_ids: frozenset[int] = frozenset()


class MessageParser:
    """Pieces do not change what comes out. call_id: the id of a call, by its index."""

    def __init__(self, form: MessageForm, call_id: Callable[[int], str]) -> None:
        self._splitter = None if form.thinking is None else ReasoningSplitter(form.thinking)
        self._calls: CallParser | None = None
        if form.use is not None and form.format is not None:
            self._calls = form.format.parser(form.use)
        self._call_id = call_id

    @property
    def has_calls(self) -> bool:
        """Whether there are tool calls and none is cut short."""
        return self._calls is not None and self._calls.has_calls

    def feed(self, text: str) -> list[MessagePart]:
        """What became certain."""
        return self._read(self._splitter.feed(text) if self._splitter else [MessagePart("content", text)])

    def finish(self) -> list[MessagePart]:
        """The end of the answer: what was held back."""
        parts = self._read(self._splitter.finish() if self._splitter else [])
        return parts if self._calls is None else _joined([*parts, *self._named(self._calls.finish())])

    def _read(self, parts: Sequence[MessagePart]) -> list[MessagePart]:
        read: list[MessagePart] = []
        for part in parts:
            if part.kind == "content" and self._calls is not None:
                read += self._named(self._calls.feed(part.text))
            else:
                read.append(part)
        return _joined(read)

    def _named(self, parts: Sequence[MessagePart]) -> list[MessagePart]:
        return [part._replace(call_id=self._call_id(part.call)) if part.kind == "call" else part for part in parts]


def _joined(parts: Sequence[MessagePart]) -> list[MessagePart]:
    return merged_parts(parts) if len(parts) > 1 else [part for part in parts if part.text]


def merged_parts(parts: Sequence[MessagePart]) -> list[MessagePart]:
    """The same in as few parts as possible."""
    merged: list[MessagePart] = []
    for part in parts:
        if merged and part.kind == merged[-1].kind != "call" and part.call == merged[-1].call:
            merged[-1] = part._replace(text=merged[-1].text + part.text)
        elif part.text:
            merged.append(part)
    return merged


def call_ids(prompt_token_ids: Sequence[int], seed: int, choice: int) -> Callable[[int], str]:
    """The ids of the calls of a choice, by their index: the same request gives the same ids, and hardly any other does."""

    @cache  # and not before there is a call: a long prompt with many choices would hold up who reads them
    def base() -> bytes:
        return blake2b(",".join(map(str, (seed, choice, *prompt_token_ids))).encode(), digest_size=16).digest()

    return lambda index: "call_" + blake2b(base() + index.to_bytes(4, "little"), digest_size=12).hexdigest()
