"""What /health and /ready say: whether steps complete when there is work, not whether a flag is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from hotloop.server.lifecycle import Lifecycle

_STATES = {
    "starting": "the engine is starting",
    "restarting": "the engine ended and is being started again; its requests wait for it",
    "failed": "the engine does not start; the log tells why",
    "closed": "the engine is closed",
}
_SHARE_OF_WATCHDOG = 1 / 3  # a stall shows this early; the watchdog restarts the engine at its whole limit
_STEPS_OF_PATIENCE = 2  # a step may take so many times as long as the longest so far


class WatchedEngine(Protocol):
    """See `SupervisedClient`. Reading it takes no time, whatever the engine does."""

    @property
    def state(self) -> str: ...

    @property
    def num_live(self) -> int: ...

    @property
    def last_progress_s(self) -> float: ...

    @property
    def longest_step_s(self) -> float: ...


class Health:
    """Each answer: (HTTP status, reason)."""

    def __init__(
        self, engine: WatchedEngine, failure: Callable[[], str | None], lifecycle: Lifecycle, *, watchdog_s: float
    ) -> None:
        """failure: why this process serves no more, if that is so."""
        self._engine = engine
        self._failure = failure
        self._lifecycle = lifecycle
        self._watchdog_s = watchdog_s

    def status(self) -> tuple[int, str]:
        """200 while the engine runs and, if it has requests, its steps complete."""
        engine, failure = self._engine, self._failure()
        if failure is not None:
            return 503, failure
        if engine.state != "ready":
            return 503, _STATES[engine.state]
        if not engine.num_live:
            return 200, "no requests"
        still_s = time.perf_counter() - engine.last_progress_s
        limit_s = max(self._watchdog_s * _SHARE_OF_WATCHDOG, _STEPS_OF_PATIENCE * engine.longest_step_s)
        if still_s > limit_s:
            return 503, f"no step completed for {still_s:.1f} s while {engine.num_live} requests wait"
        return 200, f"{engine.num_live} requests, the last step {still_s:.3f} s ago"

    def readiness(self) -> tuple[int, str]:
        """200 while new requests are welcome, too."""
        return (503, "draining: the server is about to end") if self._lifecycle.is_draining else self.status()
