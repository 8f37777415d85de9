"""How much of the KV pool is in use, and how much of that is wasted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotloop.kv_cache.layout import KVLayout
from hotloop.kv_cache.tables import RequestTables


@dataclass(frozen=True, slots=True)
class KVUsage:
    """The pool at one moment. A block that several requests share counts once.

    used_blocks: in some table. cached_blocks: free, but kept for the prefix cache. allocated_bytes: the slots of the
    used blocks; stored_bytes: those of them that hold a token's K and V. touched_blocks: ever used.
    """

    num_blocks: int
    used_blocks: int
    cached_blocks: int
    touched_blocks: int
    allocated_bytes: int
    stored_bytes: int

    @property
    def waste(self) -> float:
        """Allocated, unused slots as a share of the used ones."""
        return (self.allocated_bytes - self.stored_bytes) / self.stored_bytes if self.stored_bytes else 0.0


def slot_bytes(layout: KVLayout, requests: Iterable[RequestTables]) -> tuple[int, int]:
    """Bytes of the slots of all used blocks, and of those that hold a token. A shared block counts once."""
    stored: dict[int, tuple[int, int]] = {}  # block -> group, slots that hold K and V
    sizes = layout.block_sizes
    for tables in requests:
        for g, (size, table) in enumerate(zip(sizes, tables.blocks, strict=True)):
            for i in range(tables.num_freed[g], len(table)):
                slots = min(size, max(0, tables.num_computed - i * size))
                stored[table[i]] = g, max(slots, stored.get(table[i], (g, 0))[1])
    return (
        sum(sizes[g] * layout.token_bytes(g) for g, _ in stored.values()),
        sum(slots * layout.token_bytes(g) for g, slots in stored.values()),
    )
