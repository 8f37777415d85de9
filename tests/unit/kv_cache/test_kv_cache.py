"""Block layout and the block manager."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager

WINDOWED = (KVGroup((0, 1, 3), 1, 64, window=32), KVGroup((2,), 1, 64))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_layers_of_a_block_fill_it_without_overlap(block_size: int, dtype: str) -> None:
    layout = KVLayout(WINDOWED, block_size, dtype)  # type: ignore[arg-type]
    item = 4 if dtype == "f32" else 2
    for g, group in enumerate(WINDOWED):
        half = group.num_kv_heads * layout.tokens_per_block(g) * group.head_dim * item
        starts = sorted(offset for layer in group.layers for offset in layout.layer_offsets(layer))
        assert starts == [i * half for i in range(2 * len(group.layers))]
        assert starts[-1] + half <= layout.block_bytes


def test_small_groups_put_more_tokens_in_a_block() -> None:
    layout = KVLayout(WINDOWED, 16, "f16")
    assert [layout.tokens_per_block(g) for g in (0, 1)] == [16, 48]
    assert layout.token_bytes(0) == 3 * 2 * 64 * 2
    assert layout.blocks_for(49) == 4 + 2


def test_bytes_read_respect_the_window() -> None:
    layout = KVLayout(WINDOWED, 16, "f16")
    assert layout.bytes_read([100]) == 32 * layout.token_bytes(0) + 100 * layout.token_bytes(1)
    assert layout.bytes_read([10, 10]) == 2 * layout.bytes_read([10])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 200)), max_size=40))
def test_blocks_are_never_lost_or_shared(actions: list[tuple[str, int]]) -> None:
    manager = KVCacheManager(KVLayout(WINDOWED, 8, "f16"), num_blocks=20)
    held: dict[str, int] = {}
    for name, tokens in actions:
        if tokens == 0:
            manager.free(name)
            held.pop(name, None)
        elif manager.allocate(name, tokens):
            held[name] = max(tokens, held.get(name, 0))
            for group, table in enumerate(manager.block_tables(name)):
                assert len(table) == -(-held[name] // manager.layout.tokens_per_block(group))
        manager.check_invariants()
    for name in held:
        manager.free(name)
    assert manager.num_free_blocks == 20


def test_a_failed_allocation_changes_nothing() -> None:
    manager = KVCacheManager(KVLayout(WINDOWED, 8, "f16"), num_blocks=4)
    assert manager.allocate("a", 8)
    before = manager.block_tables("a")[0][:], manager.num_free_blocks
    assert not manager.allocate("a", 800)
    assert (manager.block_tables("a")[0], manager.num_free_blocks) == before


def test_a_pool_for_a_long_context_costs_nothing_until_it_is_used() -> None:
    tracemalloc.start()
    manager = KVCacheManager(KVLayout(WINDOWED, 1, "f16"), 2**24)
    assert manager.allocate("x", 100)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    manager.free("x")
    assert manager.num_free_blocks == 2**24
    manager.check_invariants()
