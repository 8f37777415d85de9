"""ReadRate: how fast the latest steps read memory."""

from __future__ import annotations

from collections import deque


class ReadRate:
    """Bytes per second of the last whole seconds."""

    _WINDOW = 10

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, float]] = deque(maxlen=self._WINDOW + 1)  # second of the clock, bytes in it

    def add(self, now_s: float, num_bytes: float) -> None:
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            num_bytes += self._seconds.pop()[1]
        self._seconds.append((second, num_bytes))

    def bytes_per_s(self, now_s: float) -> float:
        end = int(now_s)
        return sum(b for second, b in list(self._seconds) if end - self._WINDOW <= second < end) / self._WINDOW
