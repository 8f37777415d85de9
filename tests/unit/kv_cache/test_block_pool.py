"""Which block is taken next, and what a reference keeps."""

from hotloop.kv_cache.block_pool import BlockId, BlockPool


def make_pool(num_blocks: int) -> tuple[BlockPool, list[BlockId]]:
    evicted: list[BlockId] = []
    return BlockPool(num_blocks, evicted.append), evicted


def test_spare_blocks_are_taken_before_untouched_ones_and_cached_ones_last() -> None:
    pool, evicted = make_pool(4)
    a, b, c = pool.take(), pool.take(), pool.take()
    pool.release(b, cached=True)
    pool.release(a, cached=False)
    pool.release(c, cached=True)
    assert pool.num_free_blocks == 4
    assert pool.take() == a
    assert pool.take() == 3, "the untouched one"
    assert not evicted
    assert pool.take() == b
    assert pool.take() == c
    assert evicted == [b, c]
    assert pool.num_free_blocks == 0


def test_a_shared_block_stays_until_the_last_reference_is_gone() -> None:
    pool, _ = make_pool(1)
    block = pool.take()
    pool.share(block)
    pool.release(block, cached=True)
    assert pool.num_free_blocks == 0
    pool.release(block, cached=True)
    assert pool.num_free_blocks == pool.num_evictable_blocks == 1


def test_use_of_a_cached_block_makes_it_the_last_to_be_evicted() -> None:
    pool, evicted = make_pool(2)
    a, b = pool.take(), pool.take()
    pool.release(a, cached=True)
    pool.release(b, cached=True)
    pool.share(a)
    pool.release(a, cached=True)
    assert [pool.take(), pool.take()] == [b, a] == evicted


def test_a_forgotten_block_is_spare() -> None:
    pool, evicted = make_pool(2)
    a, b = pool.take(), pool.take()
    pool.release(a, cached=True)
    pool.forget(a)
    pool.forget(b)
    pool.check_invariants({b: 1}, set())
    assert pool.take() == a
    assert not evicted
