"""KVCacheManager: which blocks belong to which request. Ids only, no arrays."""

from __future__ import annotations

from hotloop.kv_cache.layout import KVLayout

BlockTables = tuple[list[int], ...]  # per KV group: position p lives in tables[g][p // tokens_per_block(g)]


class KVCacheManager:
    """Block tables of live requests over a pool of ``num_blocks`` equal blocks."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self._free: list[int] = []  # blocks given back
        self._num_touched = 0  # blocks from here on were never used: the pool of a long context costs nothing until then
        self._tables: dict[str, BlockTables] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._free) + self.num_blocks - self._num_touched

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Extend the request's tables to hold ``num_tokens`` tokens; False, and nothing changed, if blocks are short."""
        tables = self._tables.get(request_id, tuple([] for _ in self.layout.groups))
        missing = [
            max(0, -(-num_tokens // self.layout.tokens_per_block(g)) - len(table)) for g, table in enumerate(tables)
        ]
        if sum(missing) > self.num_free_blocks:
            return False
        self._tables[request_id] = tables  # first, so that `free` finds them should Ctrl-C come in between
        for table, count in zip(tables, missing, strict=True):
            table.extend(self._take() for _ in range(count))
        return True

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._num_touched += 1
        return self._num_touched - 1

    def block_tables(self, request_id: str) -> BlockTables:
        return self._tables[request_id]

    def free(self, request_id: str) -> None:
        """Return the request's blocks; a request without blocks is fine."""
        for table in self._tables.pop(request_id, ()):
            self._free.extend(reversed(table))

    def check_invariants(self) -> None:
        """Every block is free or in exactly one table."""
        used = [block for tables in self._tables.values() for table in tables for block in table]
        assert sorted(used + self._free) == list(range(self._num_touched)), "blocks leaked or shared"
        assert self._num_touched <= self.num_blocks
