"""The machine's ceilings: how fast memory can be read, how many multiply-adds can be done. Measured by the one native
probe; everything else quotes it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hotloop import _native
from hotloop.errors import CapacityError
from hotloop.machine import available_memory_bytes
from hotloop.weights.cache import home

PeakKind = Literal["int8", "f32"]

_PROBE_BYTES = 512 << 20
_LEAST_PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Sequential reads of memory far larger than the caches: median and extremes of the probe's samples."""

    threads: int
    read_bandwidth_bytes_per_s: float
    min_bytes_per_s: float
    max_bytes_per_s: float
    samples: int


def measure_read_bandwidth(threads: int, seconds: float = 0.4) -> ReadBandwidth:
    """Run the probe now, for about ``seconds``. Raises CapacityError if memory or threads for it are short."""
    size = max(_LEAST_PROBE_BYTES, min(_PROBE_BYTES, available_memory_bytes() // 4))
    try:
        samples = [float(s) for s in _native.measure_read_bandwidth(threads, size, seconds)]
    except (MemoryError, RuntimeError) as error:
        raise CapacityError(
            f"cannot measure the read bandwidth with {threads} threads and {size} bytes ({error}); "
            f"raise the process's limits or lower threads"
        ) from None
    return ReadBandwidth(threads, statistics.median(samples), min(samples), max(samples), len(samples))


@dataclass(frozen=True, slots=True)
class ArithmeticPeak:
    """Multiply-adds in registers, two operations each: median and extremes of the probe's samples. kind: int8 or f32."""

    isa: str
    kind: PeakKind
    threads: int
    peak_flops_per_s: float
    min_flops_per_s: float
    max_flops_per_s: float
    samples: int


def measure_peak(isa: str, kind: PeakKind, threads: int, seconds: float = 0.05) -> ArithmeticPeak:
    """Run the probe now, for about ``seconds``, with the instructions that a kernel set's GEMM is made of."""
    samples = [float(s) for s in _native.measure_peak(isa, kind, threads, seconds)]
    return ArithmeticPeak(isa, kind, threads, statistics.median(samples), min(samples), max(samples), len(samples))


def cached_read_bandwidth(threads: int) -> ReadBandwidth:
    """The ceiling as measured once on this machine with this many threads; measured now if it was not."""
    path = home() / "machine.json"
    key = f"{platform.node()}/{_cpu_model()}/{threads}"
    try:
        known = json.loads(path.read_text())
        return ReadBandwidth(**known[key])
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    measured = measure_read_bandwidth(threads)
    temporary = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a read-only or full home only costs the next start a measurement
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps({**known, key: asdict(measured)}))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return measured


def read_ceiling(threads: int) -> float:
    """Bytes per second of `cached_read_bandwidth`; 0 where it cannot be measured: an answer does without it."""
    try:
        return cached_read_bandwidth(threads).read_bandwidth_bytes_per_s
    except CapacityError:
        return 0.0


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
