"""Markers: finds the first of some texts in text that arrives token by token, without keeping what it has seen.

Texts are bytes, one character each (Latin-1): a token may hold half a character.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.structured_outputs import WHITE_SPACE

# What of the text so far may be the beginning of a marker; None: there will be none any more.
State = str | None
START: State = ""


def as_bytes_text(text: str) -> str:
    """The text's UTF-8 with one character for each byte."""
    return text.encode().decode("latin-1")


class Markers:
    def __init__(self, texts: Sequence[str], *, at_start: bool = False) -> None:
        """texts: not empty. at_start: they count only at the very beginning, after white space."""
        self.texts = tuple(map(as_bytes_text, texts))
        self._at_start = at_start
        self._beginnings = frozenset(text[:n] for text in self.texts for n in range(1, len(text)))
        self._longest = max(map(len, self.texts)) - 1

    def advance(self, state: State, text: str) -> tuple[State, tuple[int, str] | None]:
        """The state after more text, and of a marker that ends in it the index and what of the text comes after it."""
        if state is None:
            return None, None
        text = state + text
        if self._at_start:
            text = text.lstrip(WHITE_SPACE)
            for index, marker in enumerate(self.texts):
                if text.startswith(marker):
                    return None, (index, text[len(marker) :])
            return (text if not text or text in self._beginnings else None), None
        ends = [(at + len(marker), index) for index, marker in enumerate(self.texts) if (at := text.find(marker)) >= 0]
        if ends:
            end, index = min(ends)
            return START, (index, text[end:])
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return text[-length:], None
        return START, None
