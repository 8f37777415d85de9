"""The blocks of one request: plain state, which `KVCacheManager` changes."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.kv_cache.prefix_cache import BlockHash

BlockTables = tuple[list[int], ...]  # per KV group: position p lives in tables[g][p // tokens_per_block(g)]

NO_BLOCK = 0  # what a table holds in place of a block behind the window: a valid id, never read


@dataclass(slots=True)
class RequestTables:
    """num_computed: tokens whose K/V is stored; the next one goes to that position.

    Per group: num_freed counts the blocks given up behind the window, chain is the hash of its first num_hashed blocks.
    capacity: tokens that every table has room for. next_event: the num_computed from which `computed` has work to do.
    tail_shared: the block of position num_computed may be shared or in the prefix cache, and must not be written.
    """

    blocks: BlockTables
    num_freed: list[int]
    chain: list[BlockHash]
    num_hashed: list[int]
    num_computed: int = 0
    capacity: int = 0
    next_event: int = 0
    tail_shared: bool = False
