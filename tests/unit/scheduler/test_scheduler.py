"""What a step schedules, and that no choice of the scheduler changes an output."""

import random

import pytest

from fakes import GROUPS, ONE_GROUP, WITH_WINDOW, FakeEngine, make_request, solo_tokens
from hotloop.kv_cache.layout import KVGroup
from hotloop.request import Request, RequestId
from hotloop.scheduler.policies import ByPriority, Policies

Groups = tuple[KVGroup, ...]
all_groups = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)


def crowd(count: int, seed: int, longest: int = 40) -> list[Request]:
    """Requests of which some share beginnings."""
    rng = random.Random(seed)
    stems = [[rng.randrange(50) for _ in range(longest)] for _ in range(3)]
    return [
        make_request(
            str(i),
            rng.choice(stems)[: rng.randrange(longest)] + [rng.randrange(50) for _ in range(rng.randrange(1, 10))],
            rng.randrange(1, 30),
            seed=seed,
        )
        for i in range(count)
    ]


def ids(output) -> list[str]:  # type: ignore[no-untyped-def]
    return [s.request.request_id for s in output.scheduled]


@all_groups
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("num_blocks", "budget"), [(25, 32), (25, 5), (60, 100), (500, 64)])
def test_a_crowd_is_served_as_if_each_were_alone(
    groups: Groups, prefix_caching: bool, num_blocks: int, budget: int
) -> None:
    engine = FakeEngine(groups, num_blocks, max_num_batched_tokens=budget, prefix_caching=prefix_caching)
    assert len(engine.run(crowd(24, num_blocks + budget))) == 24
    engine.assert_solo()
    assert engine.counts.mixed_steps, "prefill and decode in one step"
    assert engine.counts.partial_chunks
    assert bool(engine.counts.hit_tokens) == prefix_caching
    if num_blocks == 500:
        assert engine.counts.largest_batch >= 16


@all_groups
def test_any_budget_and_any_block_size_give_the_same(groups: Groups) -> None:
    requests = crowd(5, 9)
    for budget, block_size in [(1, 4), (2, 1), (3, 2), (7, 3), (64, 5), (100, 8), (11, 16)]:
        engine = FakeEngine(groups, 300, block_size, max_num_batched_tokens=budget)
        engine.run([make_request(r.request_id, r.prompt_token_ids, r.max_tokens, seed=9) for r in requests])
        engine.assert_solo()


@all_groups
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_request_preempted_at_any_step_goes_on_as_if_not(groups: Groups, prefix_caching: bool) -> None:
    prompt = list(range(13))
    for when in range(14):
        engine = FakeEngine(groups, max_num_batched_tokens=4, prefix_caching=prefix_caching)
        engine.scheduler.add([make_request("a", prompt, 10), make_request("b", prompt[:5], 20)])
        for _ in range(when):
            engine.step()
        was_running = engine.scheduler.preempt(RequestId("a"))
        engine.scheduler.check_invariants()
        engine.run()
        engine.assert_solo()
        assert engine.finished[RequestId("a")].num_preemptions == was_running


@all_groups
def test_a_resumed_request_goes_on_at_every_output_length(groups: Groups) -> None:
    prompt = list(range(9))
    whole = solo_tokens(make_request("a", prompt, 12), groups)
    for length in range(12):
        engine = FakeEngine(groups, max_num_batched_tokens=7)
        engine.run([make_request("a", prompt, 12, output_token_ids=whole[:length])])
        engine.assert_solo()


@all_groups
@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 11, 12, 13, 24, 36])
def test_cold_partial_hit_full_hit_and_evicted_give_the_same(groups: Groups, length: int) -> None:  # B46, B48, B111
    engine = FakeEngine(groups, 40)
    prompt = list(range(length))
    for name in ("cold", "full hit", "full hit again"):
        engine.run([make_request(name, prompt)])
    engine.run([make_request("longer", [*prompt, *prompt]), make_request("partial", [*prompt[: length // 2], 49])])
    engine.run([make_request("evicts", [7] * 60, 1)])
    engine.run([make_request("after eviction", prompt)])
    engine.assert_solo()
    if length >= 13:
        assert engine.finished[RequestId("full hit")].num_prefix_hit_tokens
        assert engine.finished[RequestId("full hit again")].num_prefix_hit_tokens < length


def test_a_full_hit_leaves_the_shared_blocks_as_they_are() -> None:  # known fault B48
    engine = FakeEngine(ONE_GROUP)
    engine.run([make_request("first", range(8), 1)])
    engine.scheduler.add([make_request("holds", [*range(8), 1, 2, 3], 20)])
    engine.step()
    blocks = list(engine.kv_cache.block_tables("holds")[0][:2])
    before = engine.runner.blocks[blocks].copy()
    engine.run([make_request("second", range(8), 5)])
    assert (engine.runner.blocks[blocks] == before).all()
    assert engine.counts.copies == 1
    engine.assert_solo()


@all_groups
@pytest.mark.parametrize("length", [1, 4, 6, 11, 12])
def test_forks_are_what_separate_requests_are(groups: Groups, length: int) -> None:
    prompt = list(range(20, 20 + length))
    engine = FakeEngine(groups, max_num_batched_tokens=7)
    engine.run(
        [
            make_request("x", prompt, 9),
            make_request("y", [1, 2, 3], 3),
            *(make_request(f"x/{i}", prompt, 9 - i, choice=i, parent_id="x") for i in range(1, 5)),
        ]
    )
    assert engine.counts.forks == 4
    engine.assert_solo()
    assert len({tuple(request.output_token_ids[:4]) for request in engine.finished.values()}) == 6
    assert engine.runner.num_computed_tokens == length + 3 + 8 + 2 + sum(8 - i for i in range(1, 5))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_children_without_a_slot_come_later(slots: int) -> None:
    engine = FakeEngine(max_num_seqs=slots)
    children = [make_request(f"x/{i}", [1, 2, 3, 4, 5], 5, choice=i, parent_id="x") for i in range(1, 6)]
    engine.run([make_request("x", [1, 2, 3, 4, 5], 5), *children])
    assert len(engine.finished) == 6
    assert engine.counts.forks >= slots - 1
    engine.assert_solo()


def test_children_of_a_request_that_leaves_go_on_without_it() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    children = [make_request(f"x/{i}", range(12), 5, choice=i, parent_id="x") for i in range(1, 4)]
    engine.scheduler.add([make_request("x", range(12), 5), *children])
    engine.step()
    assert engine.scheduler.num_running == 1
    engine.scheduler.abort(RequestId("x"))
    engine.scheduler.abort(RequestId("x/2"))
    engine.scheduler.check_invariants()
    assert set(engine.run()) == {"x/1", "x/3"}
    assert engine.counts.forks == 1
    engine.assert_solo()


def test_a_child_with_another_prompt_salt_or_past_is_a_request_of_its_own() -> None:
    engine = FakeEngine()
    output = solo_tokens(make_request("c", [1, 2, 3], 4), engine.groups)
    engine.run(
        [
            make_request("x", [1, 2, 3], 4),
            make_request("a", [1, 2, 4], 4, parent_id="x"),
            make_request("b", [1, 2, 3], 4, parent_id="x", cache_salt="s"),
            make_request("c", [1, 2, 3], 4, parent_id="x", output_token_ids=output[:2]),
            make_request("d", [1, 2, 3], 4, parent_id="nobody"),
        ]
    )
    assert engine.counts.forks == 0
    engine.assert_solo()


def test_decodes_never_wait_for_a_prefill() -> None:
    engine = FakeEngine(num_blocks=1000, max_num_batched_tokens=16)
    engine.scheduler.add([make_request(str(i), [i] * 3, 40) for i in range(8)])
    while engine.scheduler.num_running < 8 or engine.step().num_tokens > 8:
        engine.step()
    engine.scheduler.add([make_request(f"long {i}", [i] * 200, 3) for i in range(3)])
    for _ in range(20):
        output = engine.step()
        assert ids(output)[:8] == [str(i) for i in range(8)], "single tokens first"
        assert all(s.num_tokens == 1 for s in output.scheduled[:8])
        assert output.num_tokens == 16, "and what is left of the budget goes to the prefills"
    engine.run()
    engine.assert_solo()


def test_more_requests_than_tokens_of_a_step_do_not_starve() -> None:
    engine = FakeEngine(max_num_batched_tokens=3, max_num_seqs=32)
    engine.run([make_request(str(i), [i] * 10, 8) for i in range(9)])
    engine.assert_solo()
    assert engine.counts.largest_batch == 3


def test_a_short_prompt_overtakes_long_ones() -> None:
    engine = FakeEngine(num_blocks=2000, max_num_batched_tokens=128, max_model_len=4000)
    engine.scheduler.add([make_request(f"long {i}", [i] * 1000, 2) for i in range(3)])
    engine.step()
    engine.scheduler.add([make_request("short", [9] * 20, 2)])
    for _ in range(4):
        engine.step()
    assert RequestId("short") in engine.finished


def test_first_come_first_served() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.run([make_request(str(i), [i], 2) for i in range(5)])
    assert list(engine.finished) == list("01234")


def test_priority() -> None:
    engine = FakeEngine(max_num_seqs=1, policies=Policies(ByPriority()))
    engine.run([make_request(name, [1], 2, priority=p) for name, p in [("a", 2), ("b", 0), ("c", 1), ("d", 0)]])
    assert list(engine.finished) == list("bdca")


def test_a_deadline_ends_a_request_in_any_state() -> None:
    engine = FakeEngine(max_num_seqs=2, max_num_batched_tokens=8)
    engine.scheduler.add(
        [
            make_request("running", [1], 50, deadline_s=5.0),
            make_request("prefilling", [2] * 100, 50, deadline_s=5.0),
            make_request("held", [2] * 100, 50, parent_id="prefilling", deadline_s=5.0),
            make_request("waiting", [3], 50, deadline_s=5.0),
            make_request("later", [4], 3, deadline_s=100.0),
            make_request("never", [5], 3),
        ]
    )
    engine.step()
    engine.step()
    engine.now_s = 5.0
    assert set(engine.step().expired) == {"running", "prefilling", "held", "waiting"}
    assert set(engine.run()) == {"later", "never"}
    engine.assert_solo()


def test_an_abort_is_fine_in_any_state_and_twice() -> None:  # known fault B52
    rng = random.Random(3)
    engine = FakeEngine(ONE_GROUP, 16, max_num_batched_tokens=16, max_num_seqs=6)
    for i in range(150):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
        engine.scheduler.add(
            [
                make_request(f"{i}", prompt, rng.randrange(1, 30)),
                make_request(f"{i}/1", prompt, rng.randrange(1, 30), choice=1, parent_id=f"{i}"),
            ]
        )
        engine.step()
        for _ in range(4):
            engine.scheduler.abort(RequestId(f"{rng.randrange(max(0, i - 20), i + 1)}{rng.choice(['', '/1'])}"))
        engine.scheduler.check_invariants()
    engine.run()
    engine.assert_solo()
    assert engine.kv_cache.num_free_blocks == 16
    assert engine.counts.preemptions
    assert 50 < len(engine.finished) < 290


def test_a_failed_request_takes_nobody_with_it_and_leaves_nothing_in_the_cache() -> None:
    engine = FakeEngine()
    failing, other = make_request("failing", range(8), 5), make_request("other", [5, 6, 7], 5)
    engine.scheduler.add([failing, other])
    output = engine.scheduler.schedule(0.0)
    engine.scheduler.update(output, {other.request_id: [3]}, {failing.request_id})
    engine.scheduler.check_invariants()
    assert engine.scheduler.num_running == 1
    assert engine.kv_cache.match_prefix(list(range(8))) is None
    assert other.output_token_ids == [3]


def test_a_step_is_a_function_of_what_came_before() -> None:
    def history() -> list[tuple[object, ...]]:
        engine = FakeEngine(WITH_WINDOW, 30, max_num_batched_tokens=20)
        engine.scheduler.add(crowd(20, 5))
        steps = []
        while engine.scheduler.has_work:
            output = engine.step()
            tables = [engine.kv_cache.block_tables(i) for i in ids(output) if i not in engine.finished]
            steps.append((ids(output), output.block_copies, output.preempted, str(tables)))
        return steps

    assert history() == history()
