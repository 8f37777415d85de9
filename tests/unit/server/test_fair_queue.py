"""Whose turn it is: in virtual time, without an event loop."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.server.fair_queue import FairQueue, Ticket

MANY = 10**9


def queue(
    capacity: int = 1, *, max_requests: int = MANY, max_tokens: int = MANY, max_per_key: int | None = None
) -> FairQueue:
    return FairQueue(capacity, max_requests=max_requests, max_tokens=max_tokens, max_per_key=max_per_key)


def add(q: FairQueue, key: str, n: int = 1, tokens: int = 10, priority: int = 0) -> Ticket:
    ticket = Ticket(key, n, tokens, priority)
    q.add(ticket)
    return ticket


def run_all(q: FairQueue) -> list[Ticket]:
    """The order in which all start, if whatever runs ends before the next starts."""
    order: list[Ticket] = []
    while started := q.start(0.0):
        order += started
        for ticket in started:
            q.leave(ticket, 1.0)
    return order


def test_keys_take_turns_however_many_requests_one_has() -> None:
    q = queue()
    for _ in range(5):
        add(q, "a")
    for _ in range(2):
        add(q, "b")
    assert "".join(t.key for t in run_all(q)) == "ababaaa"


def test_a_request_of_several_choices_takes_as_many_turns() -> None:
    q = queue(capacity=4)
    for _ in range(2):
        add(q, "a", n=4)
    for _ in range(8):
        add(q, "b")
    order: list[str] = []
    while started := q.start(0.0):
        order += [t.key for t in started]
        for ticket in started:
            q.leave(ticket, 1.0)
    assert "".join(order) == "abbbbabbbb"


def test_who_did_nothing_for_long_has_no_claim_to_the_past() -> None:
    q = queue()
    for _ in range(100):
        add(q, "a")
    run_all(q)
    for _ in range(3):
        add(q, "a")
    for _ in range(6):
        add(q, "b")
    assert "".join(t.key for t in run_all(q))[:6] == "bababa"


def test_in_a_key_priority_then_arrival() -> None:
    q = queue()
    tickets = [add(q, "a", priority=p) for p in (0, 5, -1, 0)]
    assert run_all(q) == [tickets[2], tickets[0], tickets[3], tickets[1]]


def test_priority_of_one_key_takes_nothing_from_another() -> None:
    q = queue()
    for _ in range(3):
        add(q, "a", priority=-100)
        add(q, "b")
    assert "".join(t.key for t in run_all(q)) == "ababab"


def test_capacity_counts_choices_and_nobody_passes_who_needs_more() -> None:
    q = queue(capacity=4)
    first, second = add(q, "a", n=3), add(q, "a", n=1)
    assert q.start(0) == [first, second]
    big, small = add(q, "a", n=4), add(q, "a")
    q.leave(second, 1)
    assert q.start(1) == []
    q.leave(first, 2)
    assert q.start(2) == [big]
    q.leave(big, 3)
    assert q.start(3) == [small]


def test_more_choices_than_capacity_run_alone() -> None:
    q = queue(capacity=4)
    first = add(q, "a")
    assert q.start(0) == [first]
    huge = add(q, "a", n=20)
    after = add(q, "a")
    assert q.start(0) == []
    q.leave(first, 1)
    assert q.start(1) == [huge]
    q.leave(huge, 2)
    assert q.start(2) == [after]


def test_a_key_at_its_limit_lets_others_pass() -> None:
    q = queue(capacity=8, max_per_key=2)
    mine = [add(q, "a") for _ in range(4)]
    other = add(q, "b")
    assert set(q.start(0)) == {mine[0], mine[1], other}
    q.leave(mine[0], 1)
    assert q.start(1) == [mine[2]]


def test_more_choices_than_the_keys_limit_run_when_nothing_else_of_it_does() -> None:
    q = queue(capacity=8, max_per_key=2)
    big, small = add(q, "a", n=5), add(q, "a")
    assert q.start(0) == [big]
    q.leave(big, 1)
    assert q.start(1) == [small]


def put(q: FairQueue, key: str, n: int = 1, tokens: int = 10) -> tuple[Ticket, list[Ticket]]:
    """A request arrives; also who is dropped for it."""
    ticket = add(q, key, n, tokens)
    q.start(0)
    return ticket, q.overflow(ticket)


def test_a_full_queue_drops_the_newest_of_the_only_key() -> None:
    q = queue(max_requests=3)
    for _ in range(4):  # one runs
        assert put(q, "a")[1] == []
    ticket, dropped = put(q, "a")
    assert dropped == [ticket]
    assert q.num_queued == 3


def test_a_flood_of_one_key_makes_room_for_another() -> None:
    q = queue(max_requests=4)
    flood = [put(q, "a")[0] for _ in range(5)]
    assert [put(q, "b")[1] for _ in range(2)] == [[flood[4]], [flood[3]]]
    ticket, dropped = put(q, "b")  # both have two
    assert dropped == [ticket]
    ticket, dropped = put(q, "c")
    assert dropped == [flood[2]]


def test_nobody_is_dropped_in_vain() -> None:
    q = queue(max_requests=4)
    for _ in range(5):
        put(q, "a")
    ticket, dropped = put(q, "b", n=4)
    assert dropped == [ticket]
    assert q.num_queued == 4


def test_choices_and_tokens_count() -> None:
    q = queue(max_requests=10, max_tokens=100)
    put(q, "a")
    assert put(q, "a", n=10)[1] == []
    assert len(put(q, "a")[1]) == 1
    q = queue(max_requests=10, max_tokens=100)
    put(q, "a")
    assert put(q, "a", tokens=90)[1] == []
    assert len(put(q, "a", tokens=11)[1]) == 1
    assert put(q, "a", tokens=10)[1] == []


def test_what_is_larger_than_the_queue_waits_alone() -> None:
    q = queue(max_requests=4, max_tokens=100)
    running, _ = put(q, "a")
    big, dropped = put(q, "a", n=9, tokens=1000)
    assert dropped == []
    assert len(put(q, "a")[1]) == 1
    q.leave(running, 1)
    assert q.start(1) == [big]


def flooded(*, ended_at_s: float | None = None) -> tuple[FairQueue, Ticket]:
    """Two run, since 0 s or since those before them ended, and four wait; and a ticket that has no place."""
    q = queue(capacity=2, max_requests=4)
    first = [put(q, "a")[0] for _ in range(6)]
    if ended_at_s is not None:
        for ticket in first[:2]:
            q.leave(ticket, ended_at_s)
        q.start(ended_at_s)
        put(q, "a")
        put(q, "a")
    return q, Ticket("a", 1, 10)


def test_room_is_promised_at_the_rate_at_which_requests_end() -> None:
    q, ticket = flooded()
    assert q.promise_room(ticket, 0.5) == pytest.approx(0.5)  # one must start; two run, for a second as far as is known
    q, ticket = flooded(ended_at_s=4.0)
    assert q.promise_room(ticket, 4.0) == pytest.approx(2.0)  # they took 4 s, two at a time
    q, ticket = flooded(ended_at_s=4.0)
    assert q.promise_room(ticket, 16.0) == pytest.approx(6.0)  # those that run have taken 12 s already
    q, _ = flooded(ended_at_s=4.0)
    assert q.promise_room(Ticket("a", 3, 10), 4.0) == pytest.approx(6.0)


def test_not_everybody_is_told_to_come_back_at_once() -> None:
    q, ticket = flooded(ended_at_s=4.0)
    promises = [q.promise_room(ticket, 4.0) for _ in range(7)]
    assert promises == pytest.approx([2, 4, 6, 8, 10, 10, 10])  # as many as have room in the queue, one after the other
    assert q.promise_room(ticket, 9.0) == pytest.approx(7.5)  # 5 s later; 2.5 s for each, since the two have run for 5 s
    q, ticket = flooded(ended_at_s=4.0)
    q.promise_room(ticket, 4.0)
    assert q.promise_room(ticket, 1000.0) == q.promise_room(ticket, 1000.0) / 2  # old promises are forgotten


def test_leaving_twice_or_before_the_turn() -> None:
    q = queue()
    running, waiting = add(q, "a"), add(q, "a")
    q.start(0)
    q.leave(waiting, 1)
    q.leave(waiting, 1)
    q.leave(running, 1)
    q.leave(running, 1)
    assert (q.num_queued, q.queued_tokens, q.num_running, q.start(2)) == (0, 0, 0, [])


REQUESTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.integers(1, 50), st.integers(-1, 1), st.booleans()), max_size=60
)


@given(REQUESTS, st.integers(1, 6), st.none() | st.integers(1, 4))
@settings(deadline=None)
def test_all_that_is_accepted_runs_and_the_books_balance(
    requests: Sequence[tuple[str, int, int, int, bool]], capacity: int, max_per_key: int | None
) -> None:
    q = queue(capacity, max_requests=8, max_tokens=200, max_per_key=max_per_key)
    running: list[tuple[float, int, Ticket]] = []
    done: set[Ticket] = set()
    accepted: set[Ticket] = set()

    def started(tickets: Sequence[Ticket], now_s: float) -> None:
        for ticket in tickets:
            heapq.heappush(running, (now_s + ticket.num_tokens, ticket.number, ticket))
        load = Counter[str]()
        for _, _, ticket in running:
            load[ticket.key] += ticket.num_requests
        assert sum(load.values()) == q.num_running
        assert q.num_running <= capacity or len(running) == 1
        if max_per_key is not None:
            for key, n in load.items():
                assert n <= max_per_key or sum(t.key == key for _, _, t in running) == 1

    now_s = 0.0
    for key, n, tokens, priority, ends in requests:
        ticket = add(q, key, n, tokens, priority)
        started(q.start(now_s), now_s)
        accepted.add(ticket)
        accepted -= set(q.overflow(ticket))
        waiting = [t for t in accepted if t.started_s is None]
        assert q.num_queued == sum(t.num_requests for t in waiting)
        assert q.queued_tokens == sum(t.num_tokens for t in waiting)
        assert (q.num_queued <= 8 and q.queued_tokens <= 200) or len(waiting) == 1
        assert q.promise_room(ticket, now_s) > 0
        if ends and running:
            now_s, _, first = heapq.heappop(running)
            q.leave(first, now_s)
            done.add(first)
            started(q.start(now_s), now_s)
    while running:
        now_s, _, first = heapq.heappop(running)
        q.leave(first, now_s)
        done.add(first)
        started(q.start(now_s), now_s)
    assert done == accepted
    assert (q.num_queued, q.queued_tokens, q.num_running) == (0, 0, 0)
