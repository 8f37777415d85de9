"""What /health says of an engine, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hotloop.server import health as module
from hotloop.server.health import Health
from hotloop.server.lifecycle import Lifecycle


@dataclass
class Engine:
    state: str = "ready"
    num_live: int = 0
    last_progress_s: float = 0.0
    longest_step_s: float = 0.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def make(engine: Engine, failure: str | None = None) -> tuple[Health, Lifecycle]:
    lifecycle = Lifecycle(10.0)
    return Health(engine, lambda: failure, lifecycle, watchdog_s=60.0), lifecycle


def test_idle_for_ever_is_healthy(clock: Clock) -> None:
    health, _ = make(Engine(last_progress_s=1.0))
    assert health.status()[0] == health.readiness()[0] == 200


def test_busy_is_healthy_and_stalled_is_not(clock: Clock) -> None:
    health, _ = make(Engine(num_live=3, last_progress_s=1000.0))
    clock.now_s += 19.9
    assert health.status()[0] == 200
    clock.now_s += 0.2
    status, reason = health.status()
    assert status == 503
    assert reason == "no step completed for 20.1 s while 3 requests wait"
    assert health.readiness() == (status, reason)


def test_steps_that_have_taken_long_may_do_so_again(clock: Clock) -> None:
    health, _ = make(Engine(num_live=1, last_progress_s=1000.0, longest_step_s=30.0))
    clock.now_s += 59
    assert health.status()[0] == 200
    clock.now_s += 2
    assert health.status()[0] == 503


@pytest.mark.parametrize("state", ["starting", "restarting", "failed", "closed"])
def test_an_engine_that_is_not_there(clock: Clock, state: str) -> None:
    status, reason = make(Engine(state))[0].status()
    assert status == 503
    assert "engine" in reason


def test_a_dead_thread_shows_though_the_engine_is_fine(clock: Clock) -> None:
    health, _ = make(Engine(), "the engine failed: KeyError: 1")
    assert health.status() == (503, "the engine failed: KeyError: 1")


def test_draining_is_healthy_but_not_ready(clock: Clock) -> None:
    health, lifecycle = make(Engine())
    lifecycle.drain()
    assert health.status()[0] == 200
    status, reason = health.readiness()
    assert status == 503
    assert "draining" in reason
