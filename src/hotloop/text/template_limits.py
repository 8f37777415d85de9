"""What one rendering of a chat template may use, and operations that respect it.

An allowance counts steps against a number and a deadline, and measures every new value, so that no single
step works on much data. Operations that make a large value out of small ones are estimated before they run.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

_MAX_INT_BITS = 4096
_MAX_WIDTH = 1000
_WIDE_PERCENT_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)")
_WIDE_BRACE_FORMAT = re.compile(r"[:!][^{}]*(?:\d{4}|\{)")
_WIDE_TIME_FORMAT = re.compile(r"%[^a-zA-Z%]*\d")


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits of one rendering; they grow with the size of its input, so that a long chat is no attack."""

    seconds: float = 5.0
    steps: int = 300_000
    value_chars: int = 2_000_000
    total_chars: int = 100_000_000
    elements: int = 200_000  # of a list, with everything inside it
    source_chars: int = 200_000


class TemplateLimitError(TemplateError):
    """A template used up its allowance."""


class Allowance:
    """What is left of the limits of one rendering."""

    def __init__(self, limits: TemplateLimits, input_chars: int) -> None:
        self._seconds = limits.seconds
        self._deadline_s = time.monotonic() + limits.seconds
        self._steps = limits.steps + input_chars
        self._chars = limits.total_chars + 100 * input_chars
        self.value_chars = limits.value_chars + 4 * input_chars
        self.elements = limits.elements + input_chars

    def step(self) -> None:
        """Count one turn of anything."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitError("it takes too many steps")
        if time.monotonic() > self._deadline_s:
            raise TemplateLimitError(f"it takes longer than {self._seconds:g} s")

    def charge_chars(self, chars: int) -> None:
        """Pay for a new text of so many characters, or for an estimate before it exists."""
        self.step()
        self._chars -= chars
        if chars > self.value_chars or self._chars < 0:
            raise TemplateLimitError("it builds too much text")

    def charge_elements(self, count: int) -> None:
        """Refuse a list of more elements than allowed."""
        if count > self.elements:
            raise TemplateLimitError("it builds too long a list")

    def charge(self, value: object) -> None:
        """Pay for a new value and everything inside it; shared parts count as often as they are reachable."""
        chars, num_elements = 0, 0
        stack = [value]
        while stack:
            part = stack.pop()
            num_elements += 1
            if isinstance(part, str):
                chars += len(part)
            elif isinstance(part, list | tuple | dict):
                self.charge_elements(num_elements + len(stack) + 2 * len(part))
                stack.extend(part)
                if isinstance(part, dict):
                    stack.extend(part.values())
        self.charge_chars(chars + num_elements)


current_allowance: ContextVar[Allowance] = ContextVar("current_allowance")


def estimate_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be out of proportion to its operands."""
    if operator == "%" and isinstance(left, str):
        refuse_wide_format(left)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if operator in ("*", "**") and bits > _MAX_INT_BITS:
            raise TemplateLimitError("it computes too large a number")
    elif operator == "*":
        sequence, count = (left, right) if isinstance(right, int) else (right, left)
        if isinstance(count, int) and isinstance(sequence, str | list | tuple):
            length = len(sequence) * max(count, 0)
            current_allowance.get().charge_chars(length)
            if not isinstance(sequence, str):
                current_allowance.get().charge_elements(length)


def refuse_wide_format(text: str) -> None:
    """Refuse a printf-style format with a width of four digits, or one taken from an argument."""
    _refuse(_WIDE_PERCENT_FORMAT, text)


def refuse_wide_brace_format(text: str) -> None:
    """The same for `str.format`."""
    _refuse(_WIDE_BRACE_FORMAT, text)


def refuse_wide_time_format(text: str) -> None:
    """Refuse a time format with any width."""
    _refuse(_WIDE_TIME_FORMAT, text)
    current_allowance.get().charge_chars(100 * len(text))


def _refuse(pattern: re.Pattern[str], text: str) -> None:
    if pattern.search(text):
        raise TemplateLimitError(f"it uses a format with too large or a computed width: {text[:40]!r}")


def _refuse_width(width: object) -> None:
    if isinstance(width, int) and abs(width) > _MAX_WIDTH:
        raise TemplateLimitError(f"it pads a text to {width} characters")


def join(separator: str, items: Iterable[object]) -> str:
    listed = list(map(str, items))
    current_allowance.get().charge_chars(sum(map(len, listed)) + len(separator) * len(listed))
    return separator.join(listed)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    current_allowance.get().charge_chars(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    allowance = current_allowance.get()
    parts = text.split(sep, allowance.elements if maxsplit < 0 else min(maxsplit, allowance.elements))
    allowance.charge_elements(len(parts))
    return parts


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's indent: every line but the first, blank ones only on request."""
    _refuse_width(width)
    margin = " " * width if isinstance(width, int) else width
    lines = text.splitlines()
    current_allowance.get().charge_elements(len(lines))
    current_allowance.get().charge_chars(len(text) + len(margin) * (len(lines) + 1))
    if text.endswith("\n"):
        lines.append("")
    indented = [line if i == 0 or not (line or blank) else margin + line for i, line in enumerate(lines)]
    return (margin if first else "") + "\n".join(indented)


def pad(method: str) -> Callable[..., str]:
    """`str.center`, `ljust`, `rjust` or `zfill` up to a sensible width."""

    def padded(text: str, width: int, *fill: str) -> str:
        _refuse_width(width)
        result: str = getattr(text, method)(width, *fill)
        return result

    return padded


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: without HTML escapes, other scripts readable."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    _refuse_width(indent)
    parts, length, allowance = [], 0, current_allowance.get()
    for part in encoder.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > allowance.value_chars:
            raise TemplateLimitError("it builds too much text")
    return "".join(parts)
