"""Counters and histograms that cost well under a microsecond to write, and the families Prometheus reads of them.

Each is written by one thread and needs no lock: a reader sees every figure at some moment of it, and none ever falls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class Counter:
    """Sums that only grow, one for each value of ``label`` (one sum in all without a label)."""

    def __init__(self, name: str, help: str, label: str | None = None, values: Iterable[str] = ()) -> None:
        """values: of the label, those that show as 0 before anything is added."""
        self.name = name
        self._help = help
        self._label = label
        self._sums = dict.fromkeys([""] if label is None else values, 0.0)

    def add(self, amount: float, value: str = "") -> None:
        """An amount that is not positive adds nothing."""
        if amount > 0:
            self._sums[value] = self._sums.get(value, 0.0) + amount

    def family(self, constant: Mapping[str, str]) -> CounterMetricFamily:
        """constant: labels that every sample carries."""
        own = [] if self._label is None else [self._label]
        family = CounterMetricFamily(self.name, self._help, labels=[*constant, *own])
        for value, total in list(self._sums.items()):
            family.add_metric([*constant.values(), *([value] if own else [])], total)
        return family


class Histogram:
    """Counts of values by bucket. bounds: ascending, each the largest value of its bucket."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """``count`` times the same value; a negative one, which no clock should yield, counts as 0."""
        value = max(0.0, value)
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, constant: Mapping[str, str]) -> HistogramMetricFamily:
        """constant: labels that every sample carries."""
        family = HistogramMetricFamily(self.name, self._help, labels=list(constant))
        names = [*map(str, self._bounds), "+Inf"]
        counts = [float(total) for total in accumulate(self._counts)]
        family.add_metric(list(constant.values()), list(zip(names, counts, strict=True)), self._sum)
        return family


def one_two_five(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 ... up to ``largest``, at least 1."""
    bounds = [float(m * 10**e) for e in range(len(str(largest))) for m in (1, 2, 5)]
    return [bound for bound in bounds if bound <= largest] or [1.0]
