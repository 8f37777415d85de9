"""Short time slices, where the kernel knows them."""

import threading
from pathlib import Path

import pytest

from hotloop.engine.time_slice import set_time_slice


def slice_ns() -> int:
    """Of the calling thread."""
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/sched").read_text().splitlines()
    (value,) = [line.split(":")[1] for line in lines if line.startswith("se.slice")]
    return int(value)


def test_threads_inherit_it_and_others_keep_theirs() -> None:
    try:
        own = slice_ns()
    except (OSError, ValueError):
        pytest.skip("the kernel does not tell")
    seen: list[int] = []

    def look() -> None:
        set_time_slice(None)  # the thread has that of the one that started it
        seen.append(slice_ns())
        set_time_slice(2e-4)
        seen.append(slice_ns())
        child = threading.Thread(target=lambda: seen.append(slice_ns()))
        child.start()
        child.join()
        set_time_slice(None)
        seen.append(slice_ns())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert slice_ns() == own
    usual, *others = seen
    if others[0] == usual:
        pytest.skip("the kernel has one slice for all")
    assert others == [200_000, 200_000, usual]
