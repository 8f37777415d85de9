"""A pull's notes and progress bar on stderr; without a terminal the notes only."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from hotloop.cli.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_S = 0.1


class TerminalReporter:
    """A `weights.transfer.Reporter`; use as a context manager, so that the bar ends with the block."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._shown_at_s = 0.0

    def __enter__(self) -> "TerminalReporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bar()

    def note(self, message: str) -> None:
        self._end_bar()
        print(printable(message), file=sys.stderr)

    def progress(self, done_bytes: int, total_bytes: int | None) -> None:
        if not sys.stderr.isatty():
            return
        if self._progress is None:
            self._progress = _bar()
            self._progress.start()
            self._progress.add_task("", total=total_bytes)
        now_s = time.monotonic()
        if now_s - self._shown_at_s > _REFRESH_S or done_bytes == total_bytes:
            self._shown_at_s = now_s
            self._progress.update(self._progress.task_ids[0], completed=done_bytes, total=total_bytes)

    def _end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
