"""Timed blocks between samples of the machine's ceilings, which on a shared machine drift by 2x within minutes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.telemetry.ceilings import PeakKind, measure_peak, measure_read_bandwidth

_FLOAT_FORMATS = ("F32", "F16", "BF16")


def peak_kind(weight_format: str) -> PeakKind:
    """Which multiply-adds a kernel of this weight format is made of."""
    return "f32" if weight_format in _FLOAT_FORMATS else "int8"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the machine could do at one moment."""

    read_bytes_per_s: float
    peak_flops_per_s: float

    def __str__(self) -> str:
        return f"{self.read_bytes_per_s / 1e9:.1f} GB/s, {self.peak_flops_per_s / 1e9:.0f} GFLOP/s"


def print_conditions(threads: int) -> tuple[float, float]:
    """Say, and return, the read bandwidth (bytes per second) and the load average that a comparison begins with."""
    load_average = os.getloadavg()[0]
    ceiling = measure_read_bandwidth(threads).read_bandwidth_bytes_per_s
    print(f"ceiling: {ceiling / 1e9:.1f} GB/s with {threads} threads; load average before: {load_average:.1f}")
    if load_average > 0.5:
        print("the machine is not quiet: do not keep these figures")
    return ceiling, load_average


@dataclass(frozen=True, slots=True)
class Probe:
    """Samples both ceilings with the threads, the kernel set and the kind of arithmetic that a benchmark uses."""

    threads: int
    isa: str
    kind: PeakKind

    def sample(self) -> Ceiling:
        read = measure_read_bandwidth(self.threads, seconds=0.1)
        peak = measure_peak(self.isa, self.kind, self.threads, seconds=0.03)
        return Ceiling(read.read_bandwidth_bytes_per_s, peak.peak_flops_per_s)


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of each run of the block; ceiling: mean of the samples before and after."""

    runs_s: tuple[float, ...]
    ceiling: Ceiling


@dataclass(frozen=True, slots=True)
class Figures:
    """What timed blocks come to. median_s, spread_s: of a run, the spread from the 10th to the 90th percentile.
    mbu, mfu: medians over the blocks of each block's share of its own ceiling."""

    median_s: float
    spread_s: float
    ceiling: Ceiling
    mbu: float
    mfu: float


def timed_blocks(run: Callable[[int], object], num_runs: int, num_blocks: int, probe: Probe) -> list[Block]:
    """Time run(0), ..., run(num_runs - 1) in blocks; the first run of a block is done twice, once to warm up."""
    blocks = []
    before = probe.sample()
    for indices in np.array_split(np.arange(num_runs), min(num_blocks, num_runs)):
        run(int(indices[0]))
        runs_s = []
        for index in indices:
            started_s = time.perf_counter()
            run(int(index))
            runs_s.append(time.perf_counter() - started_s)
        after = probe.sample()
        ceiling = Ceiling(
            (before.read_bytes_per_s + after.read_bytes_per_s) / 2,
            (before.peak_flops_per_s + after.peak_flops_per_s) / 2,
        )
        blocks.append(Block(tuple(runs_s), ceiling))
        before = after
    return blocks


def figures(blocks: Sequence[Block], read_bytes: float, flops: float) -> Figures:
    """read_bytes, flops: of one run."""
    runs_s = [s for block in blocks for s in block.runs_s]
    low, high = np.percentile(runs_s, [10, 90])
    medians_s = [statistics.median(block.runs_s) for block in blocks]
    ceilings = [block.ceiling for block in blocks]
    return Figures(
        statistics.median(runs_s),
        float(high - low),
        Ceiling(
            statistics.median(c.read_bytes_per_s for c in ceilings),
            statistics.median(c.peak_flops_per_s for c in ceilings),
        ),
        statistics.median(read_bytes / s / c.read_bytes_per_s for s, c in zip(medians_s, ceilings, strict=True)),
        statistics.median(flops / s / c.peak_flops_per_s for s, c in zip(medians_s, ceilings, strict=True)),
    )


def shares(figures: Figures, read_bytes: float, flops: float) -> str:
    """GB/s and GFLOP/s with their shares of the adjacent ceilings, as text."""
    ceiling = figures.ceiling
    return (
        f"{read_bytes / figures.median_s / 1e9:6.1f} GB/s = {figures.mbu:4.0%} of {ceiling.read_bytes_per_s / 1e9:.1f}   "
        f"{flops / figures.median_s / 1e9:7.1f} GFLOP/s = {figures.mfu:4.0%} of {ceiling.peak_flops_per_s / 1e9:.0f}"
    )
