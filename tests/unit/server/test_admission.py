"""Waiting for a turn, with an event loop: giving up, deadlines, refusals, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hotloop.errors import DeadlineError, HotloopError, OverloadedError
from hotloop.server.admission import Admission
from hotloop.server.settings import ServeSettings


def admission(capacity: int = 1, **settings: Any) -> Admission:
    return Admission(ServeSettings(model_names=("m",), **settings), capacity)


class Request:
    """A request that stays in the engine until it is told to end."""

    def __init__(self, to: Admission, key: str = "a", n: int = 1, deadline_s: float | None = None) -> None:
        self.runs = False
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run(to, key, n, deadline_s))

    async def _run(self, to: Admission, key: str, n: int, deadline_s: float | None) -> None:
        async with to.enter(key, n, 10, deadline_s=deadline_s):
            self.runs = True
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self._task

    async def give_up(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task

    async def error(self) -> BaseException | None:
        await asyncio.wait([self._task], timeout=10)
        return self._task.exception()


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def body() -> None:
            async with asyncio.timeout(20):
                await test()

        asyncio.run(body(), debug=True)

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_one_after_the_other() -> None:
    gate = admission()
    first, second = Request(gate), Request(gate)
    await settle()
    assert (first.runs, second.runs, gate.num_queued, gate.queued_tokens, gate.num_running) == (True, False, 1, 10, 1)
    await first.end()
    await settle()
    assert second.runs
    await second.end()
    assert (gate.num_queued, gate.queued_tokens, gate.num_running) == (0, 0, 0)


@in_loop
async def test_who_gives_up_while_waiting_or_running_makes_room() -> None:
    gate = admission()
    first, second, third = Request(gate), Request(gate), Request(gate)
    await settle()
    await second.give_up()
    assert gate.num_queued == 1
    await first.give_up()
    await settle()
    assert third.runs
    await third.end()
    assert gate.num_running == 0


@in_loop
async def test_a_turn_that_comes_in_the_moment_of_giving_up_is_not_lost() -> None:
    gate = admission()
    first, second, third = Request(gate), Request(gate), Request(gate)
    await settle()
    ending = asyncio.create_task(first.end())
    await asyncio.sleep(0)
    giving_up = asyncio.create_task(second.give_up())
    await asyncio.gather(ending, giving_up)
    await settle()
    assert third.runs
    await third.end()
    assert gate.num_running == 0


@in_loop
async def test_full() -> None:
    gate = admission(max_queued_requests=4)
    requests = [Request(gate) for _ in range(5)]
    await settle()
    error = await Request(gate).error()
    assert isinstance(error, OverloadedError)
    assert "4 requests of 40 tokens wait" in str(error)
    assert error.retry_after_s >= 1
    error = await Request(gate, n=3).error()
    assert isinstance(error, OverloadedError)
    other = Request(gate, key="b")
    assert isinstance(await requests[-1].error(), OverloadedError)
    await asyncio.gather(*(request.end() for request in [*requests[:-1], other]))
    assert (gate.num_queued, gate.num_running) == (0, 0)


@in_loop
async def test_deadlines() -> None:
    gate = admission()
    first = Request(gate)
    await settle()
    late = Request(gate, deadline_s=time.perf_counter() - 1)
    assert isinstance(await late.error(), DeadlineError)
    waiting = Request(gate, deadline_s=time.perf_counter() + 0.02)
    assert isinstance(await waiting.error(), DeadlineError)
    assert gate.num_queued == 0
    await first.end()
    in_time = Request(gate, deadline_s=time.perf_counter() + 100)
    await settle()
    assert in_time.runs
    await in_time.end()


@in_loop
async def test_the_deadline_of_admission_is_not_that_of_the_answer() -> None:
    gate = admission()
    first = Request(gate, deadline_s=time.perf_counter() + 0.02)
    await asyncio.sleep(0.05)
    assert first.runs
    await first.end()


@in_loop
async def test_the_end() -> None:
    gate = admission()
    first, second = Request(gate), Request(gate)
    await settle()
    gate.close(HotloopError("the end"))
    assert str(await second.error()) == "the end"
    assert str(await Request(gate).error()) == "the end"
    assert first.runs
    await first.end()
    assert (gate.num_queued, gate.num_running) == (0, 0)


@in_loop
async def test_a_crowd_of_which_some_leave() -> None:
    gate = admission(capacity=3)
    requests = [Request(gate, key="abc"[i % 3], n=1 + i % 2) for i in range(60)]
    await settle()
    for request in requests[::4]:
        await request.give_up()
    await asyncio.gather(*(request.end() for number, request in enumerate(requests) if number % 4))
    assert (gate.num_queued, gate.queued_tokens, gate.num_running) == (0, 0, 0)
