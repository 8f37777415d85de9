"""The share of the budget that each prefill gets."""

from hypothesis import given
from hypothesis import strategies as st

from fakes import make_request
from hotloop.scheduler.policies import ByPriority, FirstComeFirstServed, FloorThenOldest, LatestArrival


@given(st.integers(0, 2000), st.lists(st.integers(1, 5000), max_size=40))
def test_shares_keep_to_the_budget_and_leave_nothing_undone(budget: int, needs: list[int]) -> None:
    policy = FloorThenOldest()
    shares = policy.share(budget, needs)
    assert sum(shares) == min(budget, sum(needs))
    floor, before = policy.floor(budget), 0
    for share, need in zip(shares, needs, strict=True):
        assert 0 <= share <= need
        assert share >= min(need, floor, budget - before), "each prefill in line has its floor"
        before += min(need, floor)
        before = min(before, budget)


def test_a_short_prompt_behind_long_ones_is_done_at_once() -> None:
    assert FloorThenOldest().share(512, [4000, 4000, 4000, 20]) == [512 - 2 * 32 - 20, 32, 32, 20]


def test_what_the_others_do_not_need_goes_to_the_oldest() -> None:
    assert FloorThenOldest().share(100, [10, 500, 500]) == [10, 74, 16]


def test_orders() -> None:
    early, late = make_request("a", [1], priority=5), make_request("b", [1], priority=-1)
    fcfs, priority = FirstComeFirstServed(), ByPriority()
    assert fcfs.key(early, 0) < fcfs.key(late, 1)
    assert priority.key(early, 0) > priority.key(late, 1)
    assert priority.key(early, 0) < priority.key(early, 1)
    assert LatestArrival().choose([early, late]) == 1
