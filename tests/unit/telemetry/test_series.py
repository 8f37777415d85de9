"""Counters and histograms hold what was put in, and never fall."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

from hotloop.telemetry.series import Counter, Histogram, one_two_five

BOUNDS = (0.5, 1.0, 2.0)


def samples(family: Metric) -> Mapping[tuple[str, str], float]:
    """By name and the value of the one label that is not constant."""
    return {(s.name, next((v for k, v in s.labels.items() if k != "model"), "")): s.value for s in family.samples}


@given(st.lists(st.tuples(st.floats(-1, 5), st.integers(1, 20))))
def test_a_histogram_counts_values_up_to_each_bound(observed: list[tuple[float, int]]) -> None:
    histogram = Histogram("h", "help", BOUNDS)
    for value, count in observed:
        histogram.observe(value, count)
    values = [max(0.0, value) for value, count in observed for _ in range(count)]
    got = samples(histogram.family({"model": "m"}))
    for bound in BOUNDS:
        assert got["h_bucket", str(bound)] == sum(value <= bound for value in values)
    assert got["h_bucket", "+Inf"] == got["h_count", ""] == len(values)
    assert got["h_sum", ""] == pytest.approx(math.fsum(values))


@pytest.mark.parametrize("amount", [0, -1, -0.5, float("nan")])
def test_a_counter_never_falls(amount: float) -> None:  # known fault B81
    counter = Counter("c", "help")
    counter.add(2)
    counter.add(amount)
    assert samples(counter.family({"model": "m"})) == {("c_total", ""): 2}


def test_a_counter_with_a_label_shows_the_values_that_are_known() -> None:
    counter = Counter("c", "help", "reason", ["stop", "length"])
    counter.add(1, "length")
    counter.add(3, "new")
    assert samples(counter.family({"model": "m"})) == {
        ("c_total", "stop"): 0, ("c_total", "length"): 1, ("c_total", "new"): 3,
    }  # fmt: skip


@pytest.mark.parametrize(("largest", "expected"), [(1, [1]), (4, [1, 2]), (100, [1, 2, 5, 10, 20, 50, 100])])
def test_bounds_of_token_counts(largest: int, expected: list[float]) -> None:
    assert one_two_five(largest) == expected
