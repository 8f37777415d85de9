"""When the next engine starts, and how long it may take."""

import math

import pytest

from hotloop.engine.starts import LongestStep, Starts


def test_three_failures_in_a_row_take_the_hope() -> None:
    starts = Starts(60, now_s=100.0)
    assert starts.limit_s == math.inf
    for _ in range(2):
        assert starts.failed(200.0)
        assert starts.at_s == 200.5
        assert starts.failed(200.0)
        assert starts.at_s == 202.0
        assert not starts.failed(200.0)
        assert not starts.failed(200.0)
        assert starts.at_s == 230.0
        starts.stepped()


def test_a_start_gets_the_longest_of_three_limits() -> None:
    for watchdog_s, took_s, limit_s in ((60, 2, 60), (1, 2, 10), (1, 5, 20)):
        starts = Starts(watchdog_s, now_s=100.0)
        assert starts.loaded(100.0 + took_s) == took_s
        assert starts.loaded(101.0) == 1  # a quick one later changes nothing
        assert starts.limit_s == 100.0 + limit_s


def test_a_slow_step_is_forgotten_by_and_by() -> None:
    """One that took minutes, while the machine was suspended perhaps, must not make the watchdog patient for ever."""
    steps = LongestStep()
    steps.add(80.0, 1000.0)
    steps.add(0.02, 1000.1)
    assert steps.longest_s == pytest.approx(80.0, rel=1e-3)
    for i in range(600):
        steps.add(0.02, 1000.0 + i)
    assert steps.longest_s == pytest.approx(40.0, rel=1e-2)
    steps.add(50.0, 1600.0)
    assert steps.longest_s == 50.0
    steps.add(0.02, 10_000.0)
    assert steps.longest_s == 0.02
