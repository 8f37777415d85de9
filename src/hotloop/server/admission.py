"""Admission: requests wait here for their turn, so that the engine holds little more than what it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hotloop.errors import DeadlineError, HotloopError, OverloadedError
from hotloop.server.fair_queue import FairQueue, Ticket
from hotloop.server.settings import ServeSettings


def engine_capacity(max_num_seqs: int) -> int:
    """A little more than run together: whoever comes next is there when one of them ends."""
    return max_num_seqs + max(1, max_num_seqs // 4)


class Admission:
    """The queue before the engine. Bounded; fair among API keys; whoever gives up leaves it. One event loop's.

    capacity: requests that the engine is given at a time, see `engine_capacity`.
    """

    def __init__(self, settings: ServeSettings, capacity: int) -> None:
        self._queue = FairQueue(
            capacity, max_requests=settings.max_queued_requests, max_tokens=settings.max_queued_tokens,
            max_per_key=settings.max_requests_per_key,
        )  # fmt: skip
        self._turns: dict[Ticket, asyncio.Future[None]] = {}  # of those that wait
        self._closed: HotloopError | None = None

    @property
    def num_queued(self) -> int:
        """Requests that wait; every choice of a prompt is one."""
        return self._queue.num_queued

    @property
    def queued_tokens(self) -> int:
        return self._queue.queued_tokens

    @property
    def num_running(self) -> int:
        return self._queue.num_running

    @asynccontextmanager
    async def enter(
        self, key: str, num_requests: int, num_tokens: int, priority: int = 0, deadline_s: float | None = None
    ) -> AsyncIterator[None]:
        """Wait for the turn of a request; the block is its time in the engine.

        key: whose it is. num_requests: prompts times n. num_tokens: of prompts and max_tokens, of all choices. priority:
        lower first, among those of the key. deadline_s: of time.perf_counter; matters only while it waits.

        Raises: OverloadedError if the queue is full; DeadlineError; after ``close`` what that was given.
        """
        ticket = Ticket(key, num_requests, num_tokens, priority)
        try:
            await self._wait(ticket, deadline_s)
            yield
        finally:
            self._queue.leave(ticket, time.perf_counter())
            self._turns.pop(ticket, None)
            self._start()

    def close(self, error: HotloopError) -> None:
        """Who waits, and who comes later, gets the error. What runs is left alone."""
        self._closed = error
        for turn in self._turns.values():
            _refuse(turn, error)

    async def _wait(self, ticket: Ticket, deadline_s: float | None) -> None:
        if self._closed is not None:
            raise self._closed
        left_s = None if deadline_s is None else deadline_s - time.perf_counter()
        if left_s is not None and left_s <= 0:
            raise DeadlineError("the request's time was over before it could start; give it a longer timeout_s")
        self._turns[ticket] = turn = asyncio.get_running_loop().create_future()
        self._queue.add(ticket)
        self._start()
        for dropped in self._queue.overflow(ticket):
            _refuse(self._turns.pop(dropped), self._overloaded(dropped))
        try:
            async with asyncio.timeout(left_s):
                await turn
        except TimeoutError:
            raise DeadlineError(
                f"the request's time was over while it waited for its turn; {self.num_queued} requests wait. "
                "Give it a longer timeout_s, or try again later"
            ) from None

    def _start(self) -> None:
        for ticket in self._queue.start(time.perf_counter()):
            turn = self._turns.pop(ticket)
            if not turn.done():
                turn.set_result(None)

    def _overloaded(self, ticket: Ticket) -> OverloadedError:
        queue = self._queue
        return OverloadedError(
            f"{queue.num_queued} requests of {queue.queued_tokens} tokens wait already, and there is room for "
            f"{queue.max_requests} of {queue.max_tokens} tokens; try again later",
            max(1.0, queue.promise_room(ticket, time.perf_counter())),
        )


def _refuse(turn: asyncio.Future[None], error: HotloopError) -> None:
    if not turn.done():  # done: who waited has given up, and is about to leave
        turn.set_exception(error)
