"""Who may hand requests to the engine, and whose turn is next. Plain state: no clock, no waiting; `admission` has those."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

_SMOOTHING = 1 / 16  # weight of the latest request in the mean time that requests take
_FIRST_GUESS_S = 1.0  # of that time, before any request has ended


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue, then in the engine. num_requests: prompts times n. num_tokens: of prompts and max_tokens."""

    key: str
    num_requests: int
    num_tokens: int
    priority: int = 0  # lower first, among those of one key
    number: int = 0  # order of arrival
    started_s: float | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.number


@dataclass(slots=True, eq=False)
class _Lane:
    """The requests of one API key. turns: requests it has had so far, in the count that all lanes share."""

    waiting: list[Ticket] = field(default_factory=list)  # by `Ticket.order`
    turns: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0


class FairQueue:
    """Round robin among keys, in a key by priority and arrival; a ticket of several requests takes as many turns.

    A ticket whose turn it is waits until there is room for all of its requests, or nothing runs; nobody passes it meanwhile. A
    key that is at its own limit has no turn. When the queue is full, the last in the longest line leaves it: a key that floods
    the queue cannot shut others out.
    """

    def __init__(self, capacity: int, *, max_requests: int, max_tokens: int, max_per_key: int | None) -> None:
        """capacity: requests that run together. max_requests, max_tokens: of those that wait, but for a single ticket.
        max_per_key: requests of one key that run together."""
        self._capacity = capacity
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._max_per_key = capacity if max_per_key is None else min(max_per_key, capacity)
        self._lanes: dict[str, _Lane] = {}
        self._running: set[Ticket] = set()
        self._num_tickets = 0
        self._turns = 0  # of the lane that was served last
        self._mean_s: float | None = None  # that requests spend running
        self._promised_s = 0.0  # when there should be room for all that were told to come back
        self.num_running = 0
        self.num_queued = 0
        self.queued_tokens = 0

    def add(self, ticket: Ticket) -> None:
        """Into the line of its key; then call ``start``, then ``overflow``."""
        self._num_tickets += 1
        ticket.number = self._num_tickets
        lane = self._lanes.setdefault(ticket.key, _Lane())
        if not lane.waiting:  # what it did not use while it had nothing to do is gone
            lane.turns = max(lane.turns, self._turns)
        self._insert(lane, ticket)

    def start(self, now_s: float) -> list[Ticket]:
        """Those whose turn has come; they run from now on."""
        started: list[Ticket] = []
        while lane := self._next_lane():
            ticket = lane.waiting[0]
            if self.num_running and self.num_running + ticket.num_requests > self._capacity:
                break
            self._remove(ticket)
            self._turns = lane.turns
            lane.turns += ticket.num_requests
            lane.num_running += ticket.num_requests
            self.num_running += ticket.num_requests
            ticket.started_s = now_s
            self._running.add(ticket)
            started.append(ticket)
        return started

    def overflow(self, newest: Ticket) -> list[Ticket]:
        """Those that the queue has no room for, ``newest`` among them or only others; they are in it no more."""
        if newest.started_s is not None:
            return []
        dropped: list[Ticket] = []
        while self.num_queued > newest.num_requests:
            if self.num_queued > self.max_requests:
                lane = self._longest(newest, lambda lane: lane.num_waiting)
            elif self.queued_tokens > self.max_tokens:
                lane = self._longest(newest, lambda lane: lane.waiting_tokens)
            else:
                break
            last = lane.waiting[-1]
            self._remove(last)
            if last is newest:  # nothing is gained by dropping the others
                for ticket in dropped:
                    self._insert(self._lanes[ticket.key], ticket)
                return [newest]
            dropped.append(last)
        return dropped

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """It has ended, or is given up while it waits. Harmless when repeated."""
        if ticket in self._running:
            self._running.remove(ticket)
            self._lanes[ticket.key].num_running -= ticket.num_requests
            self.num_running -= ticket.num_requests
            assert ticket.started_s is not None
            took_s = now_s - ticket.started_s
            self._mean_s = took_s if self._mean_s is None else self._mean_s + _SMOOTHING * (took_s - self._mean_s)
        elif ticket.started_s is None and ticket.key in self._lanes and ticket in self._lanes[ticket.key].waiting:
            self._remove(ticket)

    def promise_room(self, ticket: Ticket, now_s: float) -> float:
        """In how many seconds the queue should have room for a ticket that it has none for now.

        So many requests must start first, at the rate at which those that run will end if they take as long as the latest
        did, or as they have taken by now. Who was told before comes back before; but no queue of promises is longer than the
        queue itself, since not everybody comes back.
        """
        mean_tokens = self.queued_tokens / max(1, self.num_queued)
        excess = max(
            1.0,
            self.num_queued + ticket.num_requests - self.max_requests,
            (self.queued_tokens + ticket.num_tokens - self.max_tokens) / max(1.0, mean_tokens),
        )
        ages_s = [now_s - running.started_s for running in self._running if running.started_s is not None]
        mean_age_s = sum(ages_s) / max(1, len(ages_s))
        took_s = max(mean_age_s, _FIRST_GUESS_S if self._mean_s is None else self._mean_s)
        each_s = took_s / max(1, self.num_running)
        room_s = now_s + excess * each_s
        after_others_s = min(self._promised_s + ticket.num_requests * each_s, room_s + self.max_requests * each_s)
        self._promised_s = max(room_s, after_others_s)
        return self._promised_s - now_s

    def _next_lane(self) -> _Lane | None:
        """Of the keys that may start something, the one that had the fewest turns."""
        able = [
            lane
            for lane in self._lanes.values()
            if lane.waiting
            and (not lane.num_running or lane.num_running + lane.waiting[0].num_requests <= self._max_per_key)
        ]
        return min(able, key=lambda lane: (lane.turns, lane.waiting[0].number), default=None)

    def _longest(self, newest: Ticket, length: Callable[[_Lane], int]) -> _Lane:
        """The longest line; of equal ones that of the newest ticket."""
        return max(self._lanes.values(), key=lambda lane: (length(lane), lane is self._lanes[newest.key]))

    def _insert(self, lane: _Lane, ticket: Ticket) -> None:
        insort(lane.waiting, ticket, key=lambda t: t.order)
        self._count(lane, ticket, 1)

    def _remove(self, ticket: Ticket) -> None:
        lane = self._lanes[ticket.key]
        lane.waiting.remove(ticket)
        self._count(lane, ticket, -1)

    def _count(self, lane: _Lane, ticket: Ticket, sign: int) -> None:
        lane.num_waiting += sign * ticket.num_requests
        lane.waiting_tokens += sign * ticket.num_tokens
        self.num_queued += sign * ticket.num_requests
        self.queued_tokens += sign * ticket.num_tokens
