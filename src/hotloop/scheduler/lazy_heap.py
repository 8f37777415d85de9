"""LazyHeap: a priority queue whose items can be dropped from anywhere."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyHeap(Generic[T]):
    """Items with a name each, the one with the lowest key first. Every operation takes O(log n), spread over many calls:
    a dropped item stays in the heap as a husk until it comes to the top or husks are in the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, str]] = []  # key, number of the push, name
        self._items: dict[str, tuple[int, T]] = {}
        self._num_pushes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def push(self, name: str, key: Any, item: T) -> None:
        """A name that is already there moves to the new key."""
        self._num_pushes += 1
        self._items[name] = self._num_pushes, item
        heapq.heappush(self._heap, (key, self._num_pushes, name))
        self._clean()

    def drop(self, name: str) -> None:
        """A name that is not there is fine."""
        if self._items.pop(name, None) is not None:
            self._clean()

    def peek(self) -> tuple[Any, T] | None:
        """The lowest key and its item."""
        while self._heap:
            key, push, name = self._heap[0]
            live = self._items.get(name)
            if live is not None and live[0] == push:
                return key, live[1]
            heapq.heappop(self._heap)
        return None

    def pop(self) -> T:
        """Take the item that `peek` shows."""
        first = self.peek()
        assert first is not None, "pop of an empty heap"
        _, _, name = heapq.heappop(self._heap)
        del self._items[name]
        return first[1]

    def _clean(self) -> None:
        if len(self._heap) > 2 * len(self._items) + 16:
            self._heap = [e for e in self._heap if self._items.get(e[2], (0,))[0] == e[1]]
            heapq.heapify(self._heap)
