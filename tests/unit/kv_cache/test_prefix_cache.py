"""How long a prefix hit is, and what makes two blocks the same."""

import itertools

import pytest

from fakes import GROUPS, ONE_GROUP, WITH_WINDOW
from hotloop.kv_cache import prefix_cache
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.kv_cache.prefix_cache import BlockHash, root_hash

TOKENS = list(range(100, 200))


def make_manager(groups: tuple[KVGroup, ...], num_blocks: int = 200, **options: object) -> KVCacheManager:
    return KVCacheManager(KVLayout(groups, 4, "f16"), num_blocks, **options)  # type: ignore[arg-type]


def compute(manager: KVCacheManager, tokens: list[int], *, name: str = "a", salt: str = "", chunk: int = 7) -> None:
    """Run a prompt through its life, but for the end."""
    manager.start(name, salt)
    for end in [*range(chunk, len(tokens), chunk), len(tokens)]:
        assert manager.allocate(name, end)
        manager.computed(name, lambda begin, end: tokens[begin:end], end)
        manager.check_invariants()


def hit_length(manager: KVCacheManager, tokens: list[int], salt: str = "") -> int:
    hit = manager.match_prefix(tokens, salt)
    return hit.num_tokens if hit else 0


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 11, 12, 13])
def test_the_last_token_is_always_left_to_compute(length: int) -> None:  # known faults B48, B111
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:length])
    manager.free("a")
    assert hit_length(manager, TOKENS[:length]) == min(length // 4 * 4, length - 1)
    assert hit_length(manager, TOKENS) == length // 4 * 4


@pytest.mark.parametrize(("groups", "expected"), [("one group", 40), ("with window", 36), ("uneven", 36)])
def test_a_hit_is_as_long_as_every_group_can_serve(groups: str, expected: int) -> None:
    """Full blocks after 40 tokens: of 4 tokens 10, of 12 tokens 3, of 6 tokens 6."""
    manager = make_manager(GROUPS[groups])
    compute(manager, TOKENS[:40])
    manager.free("a")
    assert hit_length(manager, TOKENS[:60]) == expected


def test_a_window_group_needs_only_the_blocks_of_its_window() -> None:
    manager = make_manager(WITH_WINDOW, num_blocks=18)  # 13 + 5 blocks for 52 tokens
    compute(manager, TOKENS[:52])
    manager.free("a")
    compute(manager, TOKENS[50:53], name="other")  # takes the first blocks that were given up behind the window
    hit = manager.match_prefix(TOKENS[:52])
    assert hit is not None
    assert hit.num_tokens == 48
    windowed, full = hit.blocks
    assert [b is None for b in windowed] == [True] * 9 + [False] * 3  # positions 39..47, which 48 sees, from block 9 on
    assert None not in full
    assert len(full) == 4


def test_a_hole_in_the_window_shortens_the_hit_for_all_groups() -> None:
    manager = make_manager(WITH_WINDOW)
    compute(manager, TOKENS[:48])
    manager.free("a")
    hit = manager.match_prefix(TOKENS[:60])
    assert hit is not None
    assert hit.num_tokens == 48
    hole = hit.blocks[0][10]
    assert hole is not None
    manager._cache.remove(hole)
    manager._pool.forget(hole)
    assert hit_length(manager, TOKENS[:60]) == 40, "the block of positions 40..43 is gone"
    manager.check_invariants()


def test_what_one_window_lacks_may_uncover_a_hole_in_another() -> None:
    groups = (KVGroup((0,), 1, 16, window=5), KVGroup((1,), 1, 16, window=9), KVGroup((2,), 1, 16))
    manager = make_manager(groups)
    compute(manager, TOKENS[:48])
    manager.free("a")
    longest, shorter = manager.match_prefix(TOKENS[:60]), manager.match_prefix(TOKENS[:45])
    assert longest is not None
    assert shorter is not None
    assert (longest.num_tokens, shorter.num_tokens) == (48, 44)
    for hole in (longest.blocks[1][11], shorter.blocks[0][10]):
        assert hole is not None
        manager._cache.remove(hole)
        manager._pool.forget(hole)
    assert hit_length(manager, TOKENS[:60]) == 40


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_every_hit_leads_to_tables_that_hold_the_invariants(groups: tuple[KVGroup, ...]) -> None:
    for first, second in itertools.product(range(1, 40, 3), range(2, 40, 3)):
        manager = make_manager(groups)
        compute(manager, TOKENS[:first])
        if first % 2:
            manager.free("a")
        prompt = TOKENS[:second]
        hit = manager.match_prefix(prompt)
        missing = manager.num_missing_after(hit, second, second)
        free = manager.num_free_blocks
        manager.start("b", "", hit)
        manager.check_invariants()
        assert manager.num_missing_blocks("b", second, second) <= missing + len(groups)
        assert manager.allocate("b", second)
        assert free - manager.num_free_blocks <= missing
        manager.check_invariants()


def test_salts_and_fingerprints_separate() -> None:  # known fault B45
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:40], salt="mine")
    assert hit_length(manager, TOKENS[:40], "mine") == 39
    assert hit_length(manager, TOKENS[:40], "yours") == 0
    assert hit_length(manager, TOKENS[:40]) == 0


def test_no_two_sets_of_fields_have_the_same_root() -> None:
    fields = itertools.product([0, 1], [4, 44], ["", "x", "salt", "1"], [b"", b"x", b"salt"])
    roots = [root_hash(*f) for f in fields]
    assert len(set(roots)) == len(roots)


def test_tokens_after_another_prefix_are_no_hit() -> None:
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:40])
    assert hit_length(manager, [1, 2, 3, 4, *TOKENS[4:40]]) == 0
    assert hit_length(manager, TOKENS[4:40]) == 0
    assert hit_length(manager, [*TOKENS[:21], 5, *TOKENS[22:40]]) == 20


def test_equal_hashes_of_other_tokens_are_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "child_hash", lambda parent, tokens: BlockHash(b"all alike" + parent[:1]))
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:4])
    assert hit_length(manager, TOKENS[:5]) == 4
    assert hit_length(manager, TOKENS[1:6]) == 0


def test_a_prompt_computed_twice_is_cached_once() -> None:
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:8], name="a")
    compute(manager, TOKENS[:8], name="b")
    manager.free("a")
    manager.free("b")
    manager.check_invariants()
    assert manager.usage().cached_blocks == 2


def test_eviction_takes_the_tails_first() -> None:
    manager = make_manager(ONE_GROUP, num_blocks=10)
    compute(manager, TOKENS[:40])
    manager.free("a")
    for num_blocks in range(1, 10):
        assert manager.allocate(f"other {num_blocks}", 4)
        assert hit_length(manager, TOKENS[:41]) == 40 - 4 * num_blocks
        manager.check_invariants()


def test_eviction_takes_the_tails_of_all_groups_together() -> None:
    manager = make_manager((KVGroup((0, 1, 2), 1, 16), KVGroup((3,), 2, 8)), num_blocks=8)  # 4 and 12 tokens per block
    compute(manager, TOKENS[:24])
    manager.free("a")
    lengths = []
    for num_blocks in range(4):
        lengths.append(hit_length(manager, TOKENS[:30]))
        assert manager.allocate(f"other {num_blocks}", 1)
        manager.check_invariants()
    assert lengths == [24, 16, 12, 4], "two blocks less each time"


def test_nothing_is_cached_where_it_is_not_wanted() -> None:
    manager = make_manager(ONE_GROUP, prefix_caching=False)
    compute(manager, TOKENS[:40])
    manager.free("a")
    assert hit_length(manager, TOKENS[:40]) == 0
    assert manager.usage().cached_blocks == 0


def test_a_reset_forgets_everything_and_harms_nobody() -> None:
    manager = make_manager(ONE_GROUP)
    compute(manager, TOKENS[:40], name="a")
    compute(manager, TOKENS[50:70], name="b")
    manager.free("b")
    manager.reset_prefix_cache()
    manager.check_invariants()
    assert hit_length(manager, TOKENS[:40]) == hit_length(manager, TOKENS[50:70]) == 0
    assert manager.usage().cached_blocks == 0
    manager.free("a")
    manager.check_invariants()
    assert manager.num_free_blocks == 200
