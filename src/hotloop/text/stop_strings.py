"""Finding stop strings in text that arrives in pieces of any size."""

from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """Matches several stop strings at once, character by character, so that chunk boundaries cannot matter.

    The match that ends first wins; among matches that end at the same character, the longest.
    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: non-empty strings."""
        assert all(stops), "an empty stop string matches everywhere; requests with one are refused earlier"
        self._stops = tuple(stops)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each stop that the text so far ends with

    @property
    def num_undecided(self) -> int:
        """How many of the last characters may still turn out to be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str, *, may_match: bool = True) -> tuple[str, int] | None:
        """Advance over `text`; the stop string found and the number of characters of `text` up to its end.

        may_match: whether a match that ends in this text counts. Do not feed again after a match.
        """
        if not self._stops:
            return None
        for i, char in enumerate(text):
            found = self._advance(char)
            if found and may_match:
                return found, i + 1
        return None

    def _advance(self, char: str) -> str | None:
        longest: str | None = None
        for k, stop in enumerate(self._stops):
            failure = self._failures[k]
            matched = self._matched[k]
            while matched and stop[matched] != char:
                matched = failure[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                if longest is None or len(stop) > len(longest):
                    longest = stop
                matched = failure[matched - 1]
            self._matched[k] = matched
        return longest


@lru_cache(maxsize=64)  # the choices of a request have the same ones
def _failure_table(stop: str) -> Sequence[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    table = [0]
    for char in stop[1:]:
        length = table[-1]
        while length and stop[length] != char:
            length = table[length - 1]
        table.append(length + (stop[length] == char))
    return table
