"""How long an engine's process may take: to start (Starts, which also knows when to give up), and for a step (LongestStep)."""

from __future__ import annotations

import math

PATIENCE = 4  # a start, or a step, may take so many times as long as the longest so far
_HALF_LIFE_S = 600.0  # of the longest step: one slow moment must not make the watchdog patient for ever
_LEAST_LIMIT_S = 10.0  # a file that has left the page cache takes longer than the first time
_RETRY_DELAYS_S = (0.5, 2.0)  # after the first failed start in a row, after the second
_LATER_RETRY_DELAY_S = 30.0  # after more


class LongestStep:
    """The longest step there was lately: it counts for half of what it took every 10 minutes."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._at_s = 0.0

    def add(self, step_s: float, now_s: float) -> None:
        self.longest_s = max(step_s, self.longest_s * 0.5 ** ((now_s - self._at_s) / _HALF_LIFE_S))
        self._at_s = now_s


class Starts:
    """at_s: when the process started, or, while there is none, when the next one is to."""

    def __init__(self, watchdog_s: float, now_s: float) -> None:
        self.at_s = now_s
        self._watchdog_s = watchdog_s
        self._longest_s = 0.0
        self._num_failed = 0  # in a row

    @property
    def limit_s(self) -> float:
        """When one that goes on is hopeless. The first time nobody knows how long it takes."""
        if not self._longest_s:
            return math.inf
        return self.at_s + max(self._watchdog_s, _LEAST_LIMIT_S, PATIENCE * self._longest_s)

    def loaded(self, now_s: float) -> float:
        """The process is ready. Returns the seconds it took."""
        took_s = now_s - self.at_s
        self._longest_s = max(self._longest_s, took_s)
        return took_s

    def stepped(self) -> None:
        """The engine works: what failed before does not matter any more."""
        self._num_failed = 0

    def failed(self, now_s: float) -> bool:
        """Plan the next one. Whether there is still hope for those who wait for it."""
        self._num_failed += 1
        has_hope = self._num_failed <= len(_RETRY_DELAYS_S)
        self.at_s = now_s + (_RETRY_DELAYS_S[self._num_failed - 1] if has_hope else _LATER_RETRY_DELAY_S)
        return has_hope
