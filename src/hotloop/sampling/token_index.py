"""TokenIndex: which tokens of a vocabulary write single bytes or line ends, and which reach over a marker's end."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from hotloop.sampling.markers import State, as_bytes_text

TextOf: TypeAlias = Callable[[int], str]  # of a token

_LINE_ENDS = ("\n", "\n\n")


class TokenIndex:
    """Texts of tokens are bytes, one character each, as in `Markers`. Thread-safe.

    byte_ids: a token for each byte that has one of its own. line_end_ids: of tokens that are one or two line ends.
    control_ids: text to id.
    """

    def __init__(self, tokens: Sequence[bytes], is_special: Callable[[int], bool]) -> None:
        """tokens: the bytes of each."""
        # In one piece: 10^5 strings would take ten megabytes.
        self._text = b"".join(tokens).decode("latin-1")
        self._ends = array("Q", accumulate(map(len, tokens), initial=0))
        byte_ids: dict[str, int] = {}
        control_ids: dict[str, int] = {}
        special_ids = []
        line_end_ids = []
        for token_id in range(len(tokens)):
            text = self.text(token_id)
            if is_special(token_id):
                control_ids.setdefault(text, token_id)
                special_ids.append(token_id)
                continue
            if len(text) == 1:
                byte_ids.setdefault(text, token_id)
            if text in _LINE_ENDS:
                line_end_ids.append(token_id)
        self.byte_ids: Mapping[str, int] = byte_ids
        self.control_ids: Mapping[str, int] = control_ids
        self.line_end_ids = frozenset(line_end_ids)
        self._special_ids = frozenset(special_ids)
        self._crossing: dict[str, Mapping[str, Sequence[int]]] = {}

    def text(self, token_id: int) -> str:
        """"" for an id that the tokenizer does not have."""
        return self._text[self._ends[token_id] : self._ends[token_id + 1]] if token_id + 1 < len(self._ends) else ""

    def shown(self, markers: Iterable[str], *, shows_control: bool) -> TextOf:
        """The texts of tokens in an answer as its readers see it: of control tokens only ``markers`` have one, or all do."""
        if shows_control:
            return self.text
        hidden = self._special_ids.difference(self.control_ids.get(as_bytes_text(marker)) for marker in markers)
        return lambda token_id: "" if token_id in hidden else self.text(token_id)

    @property
    def written(self) -> Iterator[bytes]:
        """The bytes of each token, none of control tokens."""
        for token_id in range(len(self._ends) - 1):
            yield b"" if token_id in self._special_ids else self.text(token_id).encode("latin-1")

    def may_cross(self, marker: str, state: State) -> Iterator[int]:
        """Tokens that may end ``marker`` and go on, where the text so far ends with ``state``."""
        if state is None:
            return
        crossing = self._crossing.get(marker)
        if crossing is None:
            crossing = self._crossing[marker] = self._find_crossing(marker)
        yield from crossing[""]
        for length in range(1, len(marker)):
            if state.endswith(marker[:length]):
                yield from crossing.get(marker[length:], ())

    def _find_crossing(self, marker: str) -> dict[str, list[int]]:
        """By what of the marker a token begins with before it goes on; "" for those that hold all of it and more."""
        crossing: dict[str, list[int]] = defaultdict(list, {"": []})
        at = self._text.find(marker[-1])
        while at >= 0:  # only a few thousand tokens hold its last character
            token_id = bisect_right(self._ends, at) - 1
            text, size = self.text(token_id), at + 1 - self._ends[token_id]
            if size < min(len(marker), len(text)) and marker.endswith(text[:size]):
                crossing[text[:size]].append(token_id)
            if len(text) > len(marker) <= size and text.find(marker) == size - len(marker):
                crossing[""].append(token_id)
            at = self._text.find(marker[-1], at + 1)
        return dict(crossing)
