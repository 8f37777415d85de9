"""A heap from which anything can be dropped behaves like a sorted list."""

import random

from hotloop.scheduler.lazy_heap import LazyHeap


def test_it_is_a_sorted_list() -> None:
    rng = random.Random(1)
    heap: LazyHeap[int] = LazyHeap()
    expected: dict[str, int] = {}
    for _ in range(3000):
        action = rng.random()
        name = str(rng.randrange(40))
        if action < 0.5:
            key = rng.randrange(10**6)
            heap.push(name, key, key)
            expected[name] = key
        elif action < 0.8:
            heap.drop(name)
            expected.pop(name, None)
        elif expected:
            lowest = min(expected, key=lambda n: expected[n])
            assert heap.peek() == (expected[lowest], expected[lowest])
            assert heap.pop() == expected.pop(lowest)
        assert len(heap) == len(expected)
        assert all((str(n) in heap) == (str(n) in expected) for n in range(40))
    while expected:
        assert heap.pop() == expected.pop(min(expected, key=lambda n: expected[n]))
    assert heap.peek() is None


def test_dropped_items_do_not_pile_up() -> None:  # known fault B123
    heap: LazyHeap[None] = LazyHeap()
    heap.push("first", 0, None)
    for i in range(10_000):
        heap.push(str(i), i + 1, None)
        heap.drop(str(i))
    assert len(heap._heap) < 50
    assert len(heap) == 1
