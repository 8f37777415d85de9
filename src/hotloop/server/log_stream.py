"""BackgroundHandler: a log that nobody reads, such as a full pipe, holds up nobody."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time

_FLUSH_S = 1.0  # for what waits to be written, at the end


class BackgroundHandler(logging.Handler):
    """Writes to a file descriptor from a thread of its own. Of what does not fit in its queue only the number is told."""

    def __init__(self, fd: int, *, max_lines: int = 10_000) -> None:
        super().__init__()
        self._fd = fd  # no file object: at the end of the process Python would wait for its lock
        self._entries: queue.Queue[str] = queue.Queue(max_lines)
        self._num_lost = 0
        threading.Thread(target=self._write_all, name="hotloop-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._entries.put_nowait(self.format(record))
        except queue.Full:
            self._num_lost += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all is written, but not for long."""
        end_s = time.monotonic() + _FLUSH_S
        with self._entries.all_tasks_done:
            while self._entries.unfinished_tasks and (left_s := end_s - time.monotonic()) > 0:
                self._entries.all_tasks_done.wait(left_s)

    def _write_all(self) -> None:
        while True:
            entry = self._entries.get()
            if self._num_lost:
                num_lost, self._num_lost = self._num_lost, 0
                told = "%d entries of the log are lost: it was not read in time"
                record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, told, (num_lost,), None)
                entry = f"{self.format(record)}\n{entry}"
            try:
                data = f"{entry}\n".encode("utf-8", "replace")
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:  # nobody will read it, or the disk is full
                self._num_lost += 1
            self._entries.task_done()
