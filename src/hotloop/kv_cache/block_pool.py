"""BlockPool: reference counts of the pool's blocks, and which block is taken next. Ids only, no arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NewType

BlockId = NewType("BlockId", int)


class BlockPool:
    """``num_blocks`` blocks. A block is used (references > 0), evictable (none, but the prefix cache knows its content),
    spare (none, content worthless) or untouched (never used, so its memory was never committed).

    Taken first are spare blocks, then untouched ones, then evictable ones, the least recently released first.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[BlockId], None]) -> None:
        """on_evict: told of a block whose content is about to be overwritten."""
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references: list[int] = []  # of the touched blocks
        self._spare: list[BlockId] = []
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()  # in order of release

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `take` can hand out."""
        return self.num_blocks - len(self._references) + len(self._spare) + len(self._evictable)

    @property
    def num_evictable_blocks(self) -> int:
        return len(self._evictable)

    @property
    def num_touched_blocks(self) -> int:
        """Blocks ever used: what the pool may have committed of its memory."""
        return len(self._references)

    def references(self, block: BlockId) -> int:
        return self._references[block]

    def take(self) -> BlockId:
        """A block with one reference and worthless content; the caller has made sure that one is free."""
        if self._spare:
            block = self._spare.pop()
        elif len(self._references) < self.num_blocks:
            self._references.append(0)
            block = BlockId(len(self._references) - 1)
        else:
            block, _ = self._evictable.popitem(last=False)
            self._on_evict(block)
        self._references[block] = 1
        return block

    def share(self, block: BlockId) -> None:
        """One more reference to a block that is used or evictable."""
        if self._references[block] == 0:
            del self._evictable[block]
        self._references[block] += 1

    def release(self, block: BlockId, cached: bool) -> None:
        """One reference less; cached: the block's content is worth keeping if that was the last one."""
        self._references[block] -= 1
        if self._references[block] == 0:
            if cached:
                self._evictable[block] = None
            else:
                self._spare.append(block)

    def forget(self, block: BlockId) -> None:
        """The content of an evictable or used block has become worthless."""
        if block in self._evictable:
            del self._evictable[block]
            self._spare.append(block)

    def check_invariants(self, references: dict[BlockId, int], cached: set[BlockId]) -> None:
        """references: of every used block, as the tables have them. cached: blocks the prefix cache knows."""
        assert len(self._references) <= self.num_blocks
        counted = {BlockId(b): n for b, n in enumerate(self._references) if n}
        assert counted == references, f"reference counts {counted} are not those of the tables {references}"
        idle = {BlockId(b) for b, n in enumerate(self._references) if n == 0}
        assert len(set(self._spare)) == len(self._spare), "a block is spare twice"
        assert set(self._spare) == idle - cached, "spare blocks are the idle ones without content"
        assert set(self._evictable) == idle & cached, "evictable blocks are the idle ones with content"
