"""SideThread: work that goes on beside the steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class SideThread:
    """One thread, started with the first job; in a forked process a new one, since the old one stayed behind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        if self._thread is None or self._pid != os.getpid():
            self._thread, self._pid = ThreadPoolExecutor(1, self._name), os.getpid()
        return self._thread.submit(job)
