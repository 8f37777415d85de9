"""Time slices: whose turn it is on a processor when the engine keeps all of them busy."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SHORT_S = 1e-4
_SYSCALL = {"x86_64": 314, "aarch64": 274}.get(platform.machine())  # sched_setattr
_SCHED_ATTR = struct.Struct("IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def set_time_slice(seconds: float | None) -> None:
    """Of this thread, and of those that it starts from now on. None: the kernel's own choice.

    A thread that wakes up goes before a running one whose slice is longer, else it may wait for the next tick (4 ms). Threads
    that have little to do and must do it soon get a short one; it gives them no larger share. Linux 6.12 and later;
    elsewhere, and under another policy than the usual, nothing happens.
    """
    if _SYSCALL is None or not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, round((seconds or 0) * 1e9), 0, 0)
    ctypes.CDLL(None).syscall(_SYSCALL, 0, attributes, 0)
