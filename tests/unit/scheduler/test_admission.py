"""Who may start, who must wait, who is refused: nobody blocks the others for ever, and nobody starves."""

from collections.abc import Callable

import pytest

from fakes import GROUPS, ONE_GROUP, WITH_WINDOW, FakeEngine, make_request
from hotloop.errors import CapacityError, InvalidRequestError
from hotloop.kv_cache.layout import KVGroup
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import RequestId


def test_what_can_never_fit_is_refused_and_the_others_go_on() -> None:  # known fault B50
    engine = FakeEngine(ONE_GROUP, 8, block_size=4)
    engine.scheduler.add([make_request("fits", [1] * 20, 13)])
    with pytest.raises(CapacityError, match=r"36 prompt tokens and max_tokens 1, and the KV pool holds 33"):
        engine.scheduler.add([make_request("prompt", [1] * 36, 1)])
    with pytest.raises(CapacityError, match="20 prompt tokens and max_tokens 14, and the KV pool holds 33"):
        engine.scheduler.add([make_request("prompt fits", [1] * 20, 14)])
    engine.run([make_request("short", [2] * 5, 3)])
    assert set(engine.finished) == {"fits", "short"}
    engine.assert_solo()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1] * 50}, "has 50 tokens and the context length is 50"),
        ({"prompt": [1] * 40, "max_tokens": 11}, "40 prompt tokens and max_tokens 11 exceed the context length 50"),
        ({"prompt": [1], "max_tokens": 2, "output_token_ids": [1, 2]}, "arrives with 2 output tokens and max_tokens is 2"),
        ({"prompt": [1], "request_id": "there"}, "id 'there' is running"),
    ],
)
def test_what_cannot_be_served_is_refused(fields: dict[str, object], message: str) -> None:
    engine = FakeEngine(max_model_len=50)
    engine.scheduler.add([make_request("there", [1] * 49, 1)])
    with pytest.raises(InvalidRequestError, match=message):
        engine.scheduler.add([make_request("good", [1]), make_request(**{"request_id": "x", **fields})])  # type: ignore[arg-type]
    assert engine.scheduler.num_waiting == 1, "all or none"
    with pytest.raises(InvalidRequestError, match="same id"):
        engine.scheduler.add([make_request("twin", [1]), make_request("twin", [1])])


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("budget", [1, 5, 64])
def test_requests_that_fill_the_pool_take_turns(groups: tuple[KVGroup, ...], budget: int) -> None:
    pool = FakeEngine(groups).kv_cache.blocks_to_hold(29)
    engine = FakeEngine(groups, pool, max_num_batched_tokens=budget)
    engine.run([make_request(str(i), [i] * 20, 10) for i in range(4)])
    engine.assert_solo()
    assert len(engine.finished) == 4


def test_a_blocked_request_lets_smaller_ones_pass_but_not_for_ever() -> None:
    engine = FakeEngine(ONE_GROUP, 20, prefix_caching=False)
    engine.scheduler.add([make_request("first", [1] * 30, 40), make_request("big", [2] * 60, 15)])
    for i in range(60):
        engine.scheduler.add([make_request(f"small {i}", [3] * 4, 4)])
    engine.run()
    order = list(engine.finished)
    before = order.index(RequestId("big"))
    assert 5 < before < 50, "some passed it, then it had its turn"
    engine.assert_solo()


def test_passing_ends_once_enough_have_passed() -> None:
    """Small requests keep coming; without an end to passing the big one would never start."""
    engine = FakeEngine(ONE_GROUP, 20, prefix_caching=False)
    engine.scheduler.add([make_request("a", [1] * 4, 10), make_request("b", [1] * 4, 12)])
    engine.step()
    engine.scheduler.add([make_request("big", [2] * 70, 6)])
    for i in range(400):
        engine.scheduler.add([make_request(f"small {i}", [3] * 4, 12)])
        engine.step()
        if RequestId("big") in engine.finished:
            break
    assert RequestId("big") in engine.finished


def test_two_requests_above_the_pool_do_not_preempt_each_other_in_turns() -> None:  # known fault B51
    for prefix_caching in (True, False):
        engine = FakeEngine(ONE_GROUP, 30, max_num_batched_tokens=8, prefix_caching=prefix_caching)
        engine.run([make_request("a", [1] * 40, 40), make_request("b", [2] * 40, 40)])
        assert 1 <= engine.counts.preemptions <= 3
        engine.assert_solo()


def test_the_latest_arrival_is_preempted_and_the_first_never() -> None:
    engine = FakeEngine(ONE_GROUP, 24, max_num_seqs=6)
    engine.run([make_request(str(i), [i] * 8, 40) for i in range(6)])
    preemptions = [engine.finished[RequestId(str(i))].num_preemptions for i in range(6)]
    assert preemptions[0] == 0
    assert preemptions == sorted(preemptions)
    assert preemptions[-1] > 0
    assert list(engine.finished) == sorted(engine.finished)
    engine.assert_solo()


def test_a_prefill_that_is_short_of_blocks_takes_what_is_there() -> None:
    engine = FakeEngine(ONE_GROUP, 10, prefix_caching=False)
    engine.scheduler.add([make_request("a", [1] * 30, 8)])
    engine.kv_cache.allocate("someone else", 12)
    output = engine.scheduler.schedule(0.0)
    assert [s.num_tokens for s in output.scheduled] == [15]
    engine.kv_cache.free("someone else")


def test_only_the_first_admission_counts_as_a_prefix_hit() -> None:
    engine = FakeEngine()
    engine.run([make_request("a", range(20), 1)])
    engine.scheduler.add([make_request("b", range(20), 8)])
    for _ in range(3):
        engine.step()
    engine.scheduler.preempt(RequestId("b"))
    engine.run()
    assert engine.finished[RequestId("b")].num_prefix_hit_tokens == 19


def test_shared_prefixes_at_little_more_than_the_needed_pool() -> None:  # known fault B115
    engine = FakeEngine(WITH_WINDOW, 45, max_num_batched_tokens=32, max_num_seqs=8)
    stems = [[stem * 7 + i for i in range(24)] for stem in range(5)]
    engine.run([make_request(str(i), [*(t % 50 for t in stems[i % 5]), i % 50], 1 + i % 9) for i in range(100)])
    engine.assert_solo()
    assert engine.counts.hit_tokens > 500


@pytest.mark.parametrize("groups", [ONE_GROUP, WITH_WINDOW], ids=["one group", "with window"])
def test_a_crowd_with_one_beginning_computes_it_once(groups: tuple[KVGroup, ...]) -> None:
    beginning = [i % 50 for i in range(120)]
    engine = FakeEngine(groups, 1000)
    engine.run([make_request(str(i), [*beginning, i, 1, 2], 3) for i in range(16)])
    assert engine.runner.num_computed_tokens == 120 + 16 * (3 + 2)
    assert engine.counts.largest_batch == 16
    engine.assert_solo()


def test_nobody_waits_for_a_beginning_that_saves_little_or_is_not_shared() -> None:
    engine = FakeEngine(ONE_GROUP, 1000, max_num_batched_tokens=200)
    beginning = list(range(50))
    engine.scheduler.add(
        [
            make_request("first", [*beginning, *beginning, 1]),
            make_request("shares little", [*beginning, 1]),
            make_request("other salt", [*beginning, *beginning, 1], cache_salt="s"),
            make_request("shares much", [*beginning, *beginning, 2]),
        ]
    )
    assert {s.request.request_id for s in engine.step().scheduled} == {"first", "shares little", "other salt"}
    engine.run()
    engine.assert_solo()


def test_who_waits_for_a_beginning_goes_on_when_its_owner_leaves() -> None:
    engine = FakeEngine(ONE_GROUP, 1000, max_num_batched_tokens=16)
    engine.scheduler.add([make_request(str(i), [*range(50), *range(50), i]) for i in range(3)])
    assert len(engine.step().scheduled) == 1
    engine.scheduler.abort(RequestId("0"))
    assert [s.request.request_id for s in engine.step().scheduled] == ["1"]
    engine.run()
    engine.assert_solo()


def test_nobody_waits_for_a_beginning_that_was_computed_and_is_lost() -> None:
    engine = FakeEngine(ONE_GROUP, 1000, max_num_batched_tokens=32)
    engine.scheduler.add([make_request("a", [*range(50), *range(30), *[1] * 200])])
    for _ in range(3):
        engine.step()
    engine.kv_cache.reset_prefix_cache()
    engine.scheduler.add([make_request("b", [*range(50), *range(30), 2])])
    assert len(engine.step().scheduled) == 2
    engine.run()
    engine.assert_solo()


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], int]:
    calls = 0
    original = getattr(KVCacheManager, name)

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(KVCacheManager, name, counted)
    return lambda: calls


@pytest.mark.parametrize("max_num_seqs", [3, 32])
def test_many_waiting_requests_cost_no_more_than_few(monkeypatch: pytest.MonkeyPatch, max_num_seqs: int) -> None:
    """Steps without slots, and with slots but without blocks."""
    work = []
    for num_waiting in (40, 3000):
        engine = FakeEngine(ONE_GROUP, 16, max_num_seqs=max_num_seqs)
        engine.scheduler.add([make_request(str(i), [i] * 12, 8) for i in range(num_waiting)])
        calls = count_calls(monkeypatch, "match_prefix")
        peeks = 0
        original = engine.scheduler._waiting.peek

        def peek() -> object:
            nonlocal peeks
            peeks += 1
            return original()  # noqa: B023

        monkeypatch.setattr(engine.scheduler._waiting, "peek", peek)
        for _ in range(12):
            engine.scheduler.update(output := engine.scheduler.schedule(0.0), {
                s.request.request_id: [1] for s in output.scheduled if s.draws
            })  # fmt: skip
        work.append((calls(), peeks))
        monkeypatch.undo()
    assert work[0] == work[1]
    assert 0 < work[0][0] < 60
