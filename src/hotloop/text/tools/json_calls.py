"""Calls written as JSON objects, {"name": ..., KEY: {arguments}}: what they look like, and reading them out of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hotloop.request import MessagePart
from hotloop.structured_outputs import WHITE_SPACE, CallForm, CallsForm, Trigger
from hotloop.text.thinking import longest_beginning
from hotloop.text.tools.use import ToolUse


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """key: of the arguments. opening, closing: around each call, in pieces that are tokens of their own or plain text.
    separator: between calls. triggers: what begins a call within free text; at_start: only at the beginning of an answer, and
    other calls after the separator."""

    key: str
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    separator: str
    triggers: tuple[Trigger, ...]
    at_start: bool = False

    def form(self, use: ToolUse) -> CallsForm:
        forms = [CallForm(f'{{"name": "{tool.name}", "{self.key}": ', tool.schema, "}", tool.called) for tool in use.tools]
        return CallsForm(
            tuple(forms), self.opening, self.closing, self.separator, self.triggers, self.at_start, use.must, use.many
        )

    def example(self, name: str, arguments: str) -> str:
        """A call as the model is to write it."""
        call = f'{{"name": "{name}", "{self.key}": {arguments}}}'
        return "".join((*self.opening, call, *self.closing))


def _or_beginnings(atoms: Iterable[str]) -> re.Pattern[str]:
    """Matches what the atoms match one after the other, and every beginning of it that ends with an atom."""
    pattern = ""
    for atom in reversed(list(atoms)):
        pattern = f"(?:{atom}{pattern})?"
    return re.compile(pattern)


_SPACE = r"\s{0,64}"


def _header(key: str, *first: str) -> tuple[str, ...]:
    """Atoms of an object up to the arguments."""
    words = ("{", *first, '"name"', ":", "NAME", ",", f'"{key}"', ":")
    atoms: list[str] = []
    for word in words:
        atoms.append(_SPACE)
        if word == "NAME":
            atoms += ['"', "(?P<name>[a-zA-Z0-9_-]{1,64})", '"']
        else:
            atoms += map(re.escape, word)
    return (*atoms, _SPACE)


_State = Callable[[list[MessagePart]], bool]


class JsonCallParser:
    """See `CallParser`. A call begins once its name and the brace that opens its arguments are there."""

    def __init__(self, syntax: CallSyntax, names: frozenset[str]) -> None:
        self._syntax = syntax
        self._triggers = [trigger.text for trigger in syntax.triggers]
        self._names = names
        headers = (_header(syntax.key), _header(syntax.key, '"type"', ":", '"function"', ","))
        self._headers = [(re.compile("".join(atoms) + r"(?=\{)"), _or_beginnings(atoms)) for atoms in headers]
        self._closing = "".join(syntax.closing).strip()
        self._buffer = ""  # not consumed
        self._before = ""  # text that goes if a call follows
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self._num_calls = 0
        self._num_complete = 0
        self._is_final = False
        self._state: _State = self._find_start if syntax.at_start else self._find

    @property
    def has_calls(self) -> bool:
        return 0 < self._num_calls == self._num_complete

    def feed(self, text: str) -> list[MessagePart]:
        self._buffer += text
        parts: list[MessagePart] = []
        while self._state(parts):
            pass
        return parts

    def finish(self) -> list[MessagePart]:
        self._is_final = True
        return self.feed("")

    # ---- states: each takes what is certain from the buffer, and says whether the next has something to do ------------------

    def _find(self, parts: list[MessagePart]) -> bool:
        """Free text, up to a trigger; line ends before it go."""
        found = [(at, trigger) for trigger in self._triggers if (at := self._buffer.find(trigger)) >= 0]
        if found:
            at, trigger = min(found)
            content = self._buffer[:at].rstrip("\n")
            self._content(parts, content)
            self._begin(self._buffer[len(content) : at], trigger, self._buffer[at + len(trigger) :])
            return True
        held = 0
        if not self._is_final:
            held = max(longest_beginning(self._buffer, trigger) for trigger in self._triggers)
        certain = self._buffer[: len(self._buffer) - held]
        if not self._is_final:
            certain = certain.rstrip("\n")
        self._content(parts, certain)
        self._buffer = self._buffer[len(certain) :]
        return False

    def _find_start(self, parts: list[MessagePart]) -> bool:
        """The beginning of the answer, which is a trigger or free text to the end."""
        start = self._buffer.lstrip(WHITE_SPACE)
        for trigger in self._triggers:
            if start.startswith(trigger):
                self._begin(self._buffer[: -len(start)], trigger, start[len(trigger) :])
                return True
        if self._is_final or not any(trigger.startswith(start) for trigger in self._triggers):
            self._state = self._rest
            return True
        return False

    def _rest(self, parts: list[MessagePart]) -> bool:
        """Free text to the end."""
        self._content(parts, self._buffer)
        self._buffer = ""
        return False

    def _begin(self, before: str, trigger: str, after: str) -> None:
        """Read a call's header next. A trigger that is the beginning of the object itself is a part of it."""
        is_object = trigger.startswith("{")
        self._before = before if is_object else before + trigger
        self._buffer = trigger + after if is_object else after
        self._state = self._read_header

    def _read_header(self, parts: list[MessagePart]) -> bool:
        for whole, beginning in self._headers:
            match = whole.match(self._buffer)
            if match and match["name"] in self._names:
                parts.append(MessagePart("call", match["name"], self._num_calls))
                self._num_calls += 1
                self._buffer = self._buffer[match.end() :]
                self._state = self._read_arguments
                return True
            if not match and beginning.fullmatch(self._buffer) and not self._is_final:
                return False
        # No call: its beginning is content, and another may begin after it.
        self._content(parts, self._before)
        self._state = self._rest if self._syntax.at_start else self._find
        return True

    def _read_arguments(self, parts: list[MessagePart]) -> bool:
        """An object, up to the brace that closes it."""
        end = self._object_end()
        if end:
            parts.append(MessagePart("arguments", self._buffer[:end], self._num_calls - 1))
            self._buffer = self._buffer[end:]
        if self._depth:
            return False
        self._num_complete += 1
        self._state = self._read_brace
        return True

    def _object_end(self) -> int:
        """How many characters of the buffer belong to the object."""
        for index, char in enumerate(self._buffer):
            if self._is_in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif char == "\\":
                    self._is_escaped = True
                elif char == '"':
                    self._is_in_string = False
            elif char == '"':
                self._is_in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    return index + 1
        return len(self._buffer)

    def _read_brace(self, parts: list[MessagePart]) -> bool:
        """That of the object around the arguments."""
        return self._read_literal("}", self._read_closing if self._closing else self._read_separator)

    def _read_closing(self, parts: list[MessagePart]) -> bool:
        return self._read_literal(self._closing, self._skip_line_ends)

    def _read_literal(self, text: str, then: _State) -> bool:
        """What has to come next, after white space; if something else does, that is content."""
        start = self._buffer.lstrip()
        if start.startswith(text):
            self._buffer = start[len(text) :]
            self._state = then
            return True
        if text.startswith(start):
            if self._is_final:
                self._buffer = ""
            return False
        self._state = self._rest if self._syntax.at_start else self._find
        return True

    def _skip_line_ends(self, parts: list[MessagePart]) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if self._buffer:
            self._state = self._find
        return bool(self._buffer)

    def _read_separator(self, parts: list[MessagePart]) -> bool:
        """Between calls, where they have no opening of their own."""
        start = self._buffer.lstrip()
        separator = self._syntax.separator.strip()
        if start.startswith(separator) and (after := start[len(separator) :].lstrip()).startswith("{"):
            self._before, self._buffer = self._buffer[: -len(after)], after
            self._state = self._read_header
            return True
        if start in ("", separator) or start.strip() == separator:
            if self._is_final and start:
                self._state = self._rest
                return True
            if self._is_final:
                self._buffer = ""
            return False
        self._state = self._rest
        return True

    def _content(self, parts: list[MessagePart], text: str) -> None:
        if text:
            parts.append(MessagePart("content", text))
