"""LoggedProgress: how far a quantization is, in the log, where there is no terminal of one's own."""

from __future__ import annotations

import logging
import time

_EVERY_S = 2.0

_log = logging.getLogger(__name__)


class LoggedProgress:
    """A `Progress` that logs a line every two seconds; a quick one none."""

    def __init__(self) -> None:
        self._logged_at_s = time.monotonic()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= _EVERY_S:
            self._logged_at_s = now_s
            _log.info("quantizing the weights: %.0f %%", 100 * done_bytes / max(total_bytes, 1))
