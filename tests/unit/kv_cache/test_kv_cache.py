"""Block layout and the block manager."""

import itertools
import tracemalloc
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.config import KVDtype
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.kv_cache.storage import KVStorage

WINDOWED = (KVGroup((0, 1, 3), 1, 64, window=32), KVGroup((2,), 1, 64))


@pytest.mark.parametrize("precise_keys", [False, True])
@pytest.mark.parametrize("dtype", get_args(KVDtype))
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_parts_of_a_block_fill_it_without_overlap(block_size: int, dtype: KVDtype, precise_keys: bool) -> None:
    layout = KVLayout(tuple(replace(g, precise_keys=precise_keys) for g in WINDOWED), block_size, dtype)
    scales = {"int8": (64 // 32 * 2, 64 // 64 * 2)}
    for g, group in enumerate(layout.groups):
        vectors = group.num_kv_heads * layout.tokens_per_block(g)
        item = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
        key_dtype = layout.key_dtype(g)
        sizes = (
            64 * item[key_dtype], 64 * item[dtype], scales.get(key_dtype, (0, 0))[0], scales.get(dtype, (0, 0))[1]
        )  # fmt: skip
        parts = [
            (offset, offset + vectors * size)
            for layer in group.layers
            for offset, size in zip(layout.layer_offsets(layer), sizes, strict=True)
            if size
        ]
        parts.sort()
        assert parts[0][0] == 0
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(parts))
        assert parts[-1][1] == layout.tokens_per_block(g) * layout.token_bytes(g) <= layout.block_bytes
    assert layout.block_bytes % 64 == 0
    assert layout.dtype_name == ("int8 (K: f16)" if dtype == "int8" and precise_keys else dtype)


def test_copied_blocks_are_equal_byte_for_byte() -> None:
    storage = KVStorage.allocate(KVLayout(WINDOWED, 8, "int8"), 5)
    storage.pool[:] = np.random.default_rng(0).integers(0, 256, storage.nbytes, dtype=np.uint8)
    before = storage.pool.reshape(5, -1).copy()
    storage.copy_blocks([(4, 1), (0, 3)])
    np.testing.assert_array_equal(storage.pool.reshape(5, -1), before[[0, 4, 2, 0, 4]])


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
