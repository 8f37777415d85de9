"""The log's own thread: nothing waits for whoever reads the log."""

from __future__ import annotations

import logging
import os
import select

import pytest

from hotloop.server import log_stream
from hotloop.server.log_stream import BackgroundHandler

_NUM_ENTRIES = 2000
_ENTRY = "x" * 990


def log(handler: BackgroundHandler, text: str) -> None:
    handler.handle(logging.LogRecord("a", logging.INFO, "f", 1, text, None, None))


def read_lines(fd: int, num_entries: int) -> tuple[list[str], int]:
    """The entries that were written, and how many the log says are lost, once they are so many together."""
    data, kept, num_lost = b"", [], 0
    while len(kept) + num_lost < num_entries:
        assert select.select([fd], [], [], 20)[0], (len(kept), num_lost)
        data += os.read(fd, 1 << 16)
        lines = data.decode().split("\n")[:-1]
        kept = [line for line in lines if "lost" not in line]
        num_lost = sum(int(line.split()[0]) for line in lines if "lost" in line)
    return kept, num_lost


def test_everything_is_written_in_order() -> None:
    reading, writing = os.pipe()
    handler = BackgroundHandler(writing)
    for number in range(100):
        log(handler, f"{number} \ud800 é")
    assert read_lines(reading, 100) == ([f"{number} ? é" for number in range(100)], 0)
    handler.flush()
    os.close(reading)
    os.close(writing)


def test_a_full_pipe_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "_FLUSH_S", 0.01)
    reading, writing = os.pipe()
    handler = BackgroundHandler(writing, max_lines=100)
    for number in range(2000):  # 2 MB, more than a pipe holds
        log(handler, f"{number:04} " + "x" * 1000)
    handler.flush()  # gives up
    kept, num_lost = read_lines(reading, 2000)
    assert num_lost
    assert kept == sorted(kept)
    os.close(reading)
    os.close(writing)


def test_a_pipe_that_nobody_will_read_is_no_matter() -> None:
    reading, writing = os.pipe()
    handler = BackgroundHandler(writing)
    os.close(reading)
    for _ in range(2):
        log(handler, "a")
        handler.flush()
    assert not handler._entries.unfinished_tasks
    os.close(writing)
