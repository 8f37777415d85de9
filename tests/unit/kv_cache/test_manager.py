"""Tables of live requests: windows, forks, copies on write, numbers."""

import pytest

from fakes import GROUPS, ONE_GROUP, ONLY_WINDOW, WITH_WINDOW
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager

TOKENS = list(range(1000))
GEMMA3_270M = (KVGroup(tuple(range(15)), 1, 256, window=512), KVGroup((15, 16, 17), 1, 256))


def make_manager(groups: tuple[KVGroup, ...], num_blocks: int = 200, **options: object) -> KVCacheManager:
    return KVCacheManager(KVLayout(groups, 4, "f16"), num_blocks, **options)  # type: ignore[arg-type]


def tokens_of(begin: int, end: int) -> list[int]:
    return TOKENS[begin:end]


def compute(manager: KVCacheManager, name: str, num_tokens: int) -> None:
    assert manager.allocate(name, num_tokens)
    manager.computed(name, tokens_of, num_tokens)
    manager.check_invariants()


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_the_next_chunk_finds_all_that_it_sees_and_no_more_is_held(groups: tuple[KVGroup, ...], chunk: int) -> None:
    manager = make_manager(groups)
    most = 0
    for end in range(chunk, 100, chunk):
        assert manager.allocate("a", end)
        most = max(most, 200 - manager.num_free_blocks)
        manager.computed("a", tokens_of, end)
        for g, group in enumerate(groups):
            size = manager.layout.tokens_per_block(g)
            first = 0 if group.window is None else max(0, end - group.window + 1)
            live = manager.block_tables("a")[g][first // size :]
            assert len(set(live)) == len(live)
            assert sum(manager._pool.references(b) for b in live) == len(live)  # type: ignore[arg-type]
        manager.check_invariants()
    assert most <= manager.blocks_to_hold(100, chunk)


def test_memory_stops_growing_at_the_window() -> None:
    manager = KVCacheManager(KVLayout(GEMMA3_270M, 16, "f16"), 2000)
    used = []
    for end in range(64, 4097, 64):
        assert manager.allocate("a", end)
        used.append(manager.num_blocks - manager.num_free_blocks - -(-end // 80))  # but for full attention
        manager.computed("a", lambda begin, end: [0] * (end - begin), end)
    assert max(used) == used[8] == 36  # 512 - 1 + 64 tokens
    assert used[-1] == max(used)


def test_memory_really_stops_growing_without_a_prefix_cache() -> None:
    manager = make_manager(ONLY_WINDOW, prefix_caching=False)
    for end in range(1, 500):
        compute(manager, "a", end)
    assert manager.usage().touched_blocks == manager.blocks_to_hold(500) == 2


def test_a_request_that_just_fits_when_it_is_alone_can_be_computed() -> None:
    for groups in GROUPS.values():
        for length in range(1, 40):
            needed = make_manager(groups).blocks_to_hold(length)
            manager = make_manager(groups, needed)
            for end in range(1, length + 1):
                compute(manager, "a", end)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 12, 13])
def test_a_fork_shares_blocks_until_one_of_them_writes(groups: tuple[KVGroup, ...], length: int) -> None:
    manager = make_manager(groups)
    assert manager.allocate("parent", length)
    before = manager.num_free_blocks
    manager.fork("parent", "child", length)
    manager.fork("parent", "other", length)
    assert manager.num_free_blocks == before
    manager.computed("parent", tokens_of, length)
    manager.computed("child", tokens_of, length)
    manager.computed("other", tokens_of, length)
    manager.check_invariants()
    tails = [manager.block_tables("parent")[g][-1] for g in range(len(groups))]
    partial = [g for g in range(len(groups)) if length % manager.layout.tokens_per_block(g)]

    for name in ("child", "parent", "other"):
        assert manager.allocate(name, length + 1)
        manager.check_invariants()
    copies = manager.block_copies()
    assert len(copies) == 2 * len(partial), "the last of the three writes in place"
    assert {source for source, _ in copies} == {tails[g] for g in partial}
    assert not manager.block_copies(), "drained"
    owners = [tuple(table[-1] for table in manager.block_tables(name)) for name in ("child", "parent", "other")]
    for g in range(len(groups)):
        assert len({owner[g] for owner in owners}) == 3
    for name in ("child", "parent", "other"):
        manager.free(name)
    manager.check_invariants()
    assert manager.num_free_blocks == 200


def test_a_copy_needs_a_free_block() -> None:
    manager = make_manager(ONE_GROUP, 2)
    assert manager.allocate("parent", 6)
    manager.fork("parent", "child", 6)
    manager.computed("parent", tokens_of, 6)
    assert not manager.allocate("child", 7)
    assert not manager.allocate("parent", 7)
    assert not manager.block_copies()
    manager.free("parent")
    assert manager.allocate("child", 7), "alone, it writes in place"
    assert not manager.block_copies()
    manager.check_invariants()


def test_a_full_hit_writes_in_place_when_alone_and_into_a_copy_when_not() -> None:  # known fault B48
    manager = make_manager(ONE_GROUP)
    compute(manager, "a", 8)
    shared = list(manager.block_tables("a")[0])
    manager.start("b", "", manager.match_prefix(TOKENS[:8]))
    compute(manager, "b", 8)
    assert manager.block_copies() == [(shared[1], manager.block_tables("b")[0][1])]
    assert manager.block_tables("a")[0] == shared
    manager.free("a")
    manager.free("b")

    manager.start("c", "", manager.match_prefix(TOKENS[:8]))
    assert manager.block_tables("c")[0] == shared
    assert manager.allocate("c", 8)
    manager.check_invariants()
    assert not manager.block_copies()
    hit = manager.match_prefix(TOKENS[:9])
    assert hit is not None
    assert hit.num_tokens == 4, "the block that is being written is not offered"
    manager.computed("c", tokens_of, 8)
    assert manager.match_prefix(TOKENS[:9]).num_tokens == 8  # type: ignore[union-attr]


def test_a_failed_allocation_leaves_the_tables_of_a_hit_alone() -> None:
    manager = make_manager(ONE_GROUP, 3)
    compute(manager, "a", 8)
    manager.start("b", "", manager.match_prefix(TOKENS[:8]))
    before = [list(table) for table in manager.block_tables("b")]
    assert manager.num_missing_blocks("b", 20) == 3 + 1
    assert not manager.allocate("b", 20)
    assert [list(table) for table in manager.block_tables("b")] == before
    manager.check_invariants()


def test_usage_counts_shared_blocks_once_and_knows_the_waste() -> None:
    manager = make_manager(ONE_GROUP)
    compute(manager, "a", 6)
    manager.fork("a", "b", 6)
    usage = manager.usage()
    token = manager.layout.token_bytes(0)
    assert (usage.used_blocks, usage.allocated_bytes, usage.stored_bytes) == (2, 8 * token, 6 * token)
    assert usage.waste == pytest.approx(2 / 6)
    manager.free("a")
    manager.free("b")
    assert manager.usage().waste == 0
    assert manager.usage().cached_blocks == 1


@pytest.mark.parametrize("groups", [GEMMA3_270M, (KVGroup(tuple(range(30)), 3, 64),)], ids=["gemma3-270m", "smollm2-135m"])
def test_waste_is_small_at_usual_lengths(groups: tuple[KVGroup, ...]) -> None:
    """64 requests of mean length 400, blocks of 16 tokens."""
    manager = KVCacheManager(KVLayout(groups, 16, "f16"), 10_000)
    for i in range(64):
        length = 200 + (i * 401) // 63
        assert manager.allocate(str(i), length)
        manager.computed(str(i), lambda begin, end: [0] * (end - begin), length)
    assert 0 < manager.usage().waste <= 0.04


def test_the_maps_do_not_grow_with_the_number_of_requests() -> None:  # known fault B123
    manager = make_manager(WITH_WINDOW, 30)
    for i in range(2000):
        prompt = [i, *TOKENS[:20]]
        manager.start("x", "", manager.match_prefix(prompt))
        assert manager.allocate("x", len(prompt))
        manager.computed("x", lambda begin, end: prompt[begin:end], len(prompt))  # noqa: B023
        manager.free("x")
    manager.check_invariants()
    assert len(manager._cache) <= 30
    assert manager.num_requests == 0


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_blocks_behind_the_computed_tokens_are_given_back(groups: tuple[KVGroup, ...]) -> None:
    """They were for drafts: afterwards the tables are those of a request that never had any."""
    plain, drafted = make_manager(groups, 200), make_manager(groups, 200)
    num_computed = 0
    for step, num_accepted in enumerate([0, 3, 16, 0, 1, 7, 2, 15, 0, 4]):
        for _ in range(1 + num_accepted):
            num_computed += 1
            assert plain.allocate("x", num_computed)
            plain.computed("x", tokens_of, num_computed)
        assert drafted.allocate("x", num_computed - num_accepted + 16)
        drafted.computed("x", tokens_of, num_computed)
        drafted.trim("x")
        drafted.check_invariants()
        assert drafted.num_free_blocks == plain.num_free_blocks, step
        assert [len(table) for table in drafted.block_tables("x")] == [len(table) for table in plain.block_tables("x")]
    drafted.free("x")
    assert drafted.num_free_blocks == 200
