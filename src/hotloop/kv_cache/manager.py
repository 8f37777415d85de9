"""KVCacheManager: which blocks belong to which request. Ids only: no arrays, no clock."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from hotloop.kv_cache.block_pool import BlockId, BlockPool
from hotloop.kv_cache.layout import KVLayout
from hotloop.kv_cache.prefix_cache import PrefixCache, PrefixHit, pack
from hotloop.kv_cache.tables import NO_BLOCK, BlockTables, RequestTables
from hotloop.kv_cache.usage import KVUsage, slot_bytes

TokenSlice = Callable[[int, int], Sequence[int]]  # token ids at positions [begin, end), as Request.token_ids


class KVCacheManager:
    """Block tables of live requests over a pool of ``num_blocks`` equal blocks, with sharing of equal prefixes.

    Life of a request: `start` (with what `match_prefix` found, or `fork`), then per step `allocate`, the forward (after
    the copies that `block_copies` lists), `computed`; at the end `free`.
    """

    def __init__(
        self, layout: KVLayout, num_blocks: int, *, prefix_caching: bool = True, fingerprint: bytes = b""
    ) -> None:
        """fingerprint: names what K and V depend on besides the tokens (weights, arithmetic, KV dtype)."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.prefix_caching = prefix_caching
        self._cache = PrefixCache(layout, fingerprint)
        self._pool = BlockPool(num_blocks, self._cache.remove)
        self._sizes = layout.block_sizes
        self._windows = tuple(group.window for group in layout.groups)
        self._requests: dict[str, RequestTables] = {}
        self._copies: list[tuple[BlockId, BlockId]] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, those kept for the prefix cache included."""
        return self._pool.num_free_blocks

    @property
    def hit_granularity(self) -> int:
        """Multiples of so many tokens can be prefix hits (others too, where cached blocks happen to end there)."""
        full = [size for size, window in zip(self._sizes, self._windows, strict=True) if window is None]
        return max(full or self._sizes)

    @property
    def num_requests(self) -> int:
        """Requests that hold a table."""
        return len(self._requests)

    def blocks_to_hold(self, num_tokens: int, chunk: int = 1) -> int:
        """The most blocks a request of ``num_tokens`` tokens holds at one time if steps compute up to ``chunk`` of them."""
        return sum(self._peak(g, num_tokens, chunk) for g in range(len(self._sizes)))

    def most_tokens(self, limit: int) -> int:
        """The longest request, up to ``limit`` tokens, that the pool can hold when it is alone."""
        return bisect_right(range(1, limit + 1), self.num_blocks, key=self.blocks_to_hold)

    def _peak(self, group: int, num_tokens: int, chunk: int) -> int:
        size, window = self._sizes[group], self._windows[group]
        blocks = -(-num_tokens // size)
        if window is None:
            return blocks
        span = window - 1 + chunk  # positions that the first token of a chunk sees, and those of the chunk
        return min(blocks, -(-(span - 1) // size) + 1)

    def num_missing_blocks(self, request_id: str, num_tokens: int, chunk: int = 1) -> int:
        """Free blocks that the request will take until ``num_tokens`` tokens are computed, in steps of up to ``chunk``."""
        tables = self._requests[request_id]
        if num_tokens <= tables.capacity and not tables.tail_shared:
            return 0
        missing = len(self._sizes) if tables.tail_shared else 0
        for g, table in enumerate(tables.blocks):
            held = len(table) - tables.num_freed[g]
            total = -(-num_tokens // self._sizes[g]) - tables.num_freed[g]
            missing += max(0, min(total, self._peak(g, num_tokens, chunk)) - held)
        return missing

    def num_missing_after(self, hit: PrefixHit | None, num_tokens: int, chunk: int = 1) -> int:
        """`num_missing_blocks` of a request not yet started; the blocks of ``hit`` that are free now are among them."""
        if hit is None:
            return self.blocks_to_hold(num_tokens, chunk)
        missing = 0
        for g, found in enumerate(hit.blocks):
            blocks = [b for b in found if b is not None]
            in_use = sum(self._pool.references(b) > 0 for b in blocks)
            num_freed = len(found) - len(blocks)
            peak = min(-(-num_tokens // self._sizes[g]) - num_freed, self._peak(g, num_tokens, chunk))
            missing += max(peak, len(blocks)) - in_use
            if hit.num_tokens % self._sizes[g] and in_use and self._pool.references(blocks[-1]):
                missing += 1  # the copy of the last block
        return missing

    def match_prefix(self, token_ids: Sequence[int], salt: str = "") -> PrefixHit | None:
        """The longest cached prefix of ``token_ids`` that leaves at least the last token to compute. Changes nothing."""
        if not self.prefix_caching or len(token_ids) < 2:
            return None
        return self._cache.match(token_ids, salt, len(token_ids) - 1)

    def start(self, request_id: str, salt: str = "", hit: PrefixHit | None = None) -> None:
        """Open the tables of a request; with ``hit`` (just found, same salt) its first tokens count as computed."""
        assert request_id not in self._requests
        if hit is None:
            groups = range(len(self._sizes))
            chain = [self._cache.root(g, salt) for g in groups]
            self._requests[request_id] = RequestTables(tuple([] for _ in groups), [0] * len(chain), chain, [0] * len(chain))
            return
        for found in hit.blocks:
            for block in found:
                if block is not None:
                    self._pool.share(block)
        self._requests[request_id] = tables = RequestTables(
            blocks=tuple([NO_BLOCK if b is None else b for b in found] for found in hit.blocks),
            num_freed=[sum(b is None for b in found) for found in hit.blocks],
            chain=list(hit.hashes),
            num_hashed=[hit.num_tokens // size for size in self._sizes],
            num_computed=hit.num_tokens,
            tail_shared=True,
        )
        tables.capacity = self._capacity(tables)

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Extend the request's tables to hold ``num_tokens`` tokens, all of them writable from the first that is not
        computed; False, and nothing changed, if blocks are short. An unknown request is started, with no salt.
        """
        tables = self._requests.get(request_id)
        if tables is None:
            self.start(request_id)  # first, so that `free` finds it should Ctrl-C come in between
            tables = self._requests[request_id]
        if num_tokens <= tables.capacity and not tables.tail_shared:
            return True
        shared = self._shared_tails(tables) if tables.tail_shared else []
        missing = [
            max(0, -(-num_tokens // size) - len(table)) for size, table in zip(self._sizes, tables.blocks, strict=True)
        ]
        if sum(missing) + len(shared) > self._pool.num_free_blocks:
            return False
        self._own_tails(tables, shared)
        for table, count in zip(tables.blocks, missing, strict=True):
            for _ in range(count):
                table.append(self._pool.take())
        tables.capacity = self._capacity(tables)
        return True

    def _capacity(self, tables: RequestTables) -> int:
        return min(len(table) * size for size, table in zip(self._sizes, tables.blocks, strict=True))

    def _shared_tails(self, tables: RequestTables) -> list[int]:
        """Groups in which others hold the block that the request writes next."""
        shared = []
        for g, (size, table) in enumerate(zip(self._sizes, tables.blocks, strict=True)):
            index = tables.num_computed // size
            if index < len(table) and self._pool.references(BlockId(table[index])) > 1:
                shared.append(g)
        return shared

    def _own_tails(self, tables: RequestTables, shared: list[int]) -> None:
        """Copy on write. A cached block that nobody else holds is written in place and leaves the cache until it is full
        again: it is overwritten with the tokens it has."""
        if not tables.tail_shared:
            return
        for g, (size, table) in enumerate(zip(self._sizes, tables.blocks, strict=True)):
            index = tables.num_computed // size
            if index == len(table):
                continue
            block = BlockId(table[index])
            if g in shared:
                copy = self._pool.take()
                self._copies.append((block, copy))
                self._pool.release(block, block in self._cache)
                table[index] = copy
            elif block in self._cache:
                self._cache.remove(block)
        tables.tail_shared = False

    def fork(self, parent_id: str, child_id: str, num_tokens: int) -> None:
        """The child starts with the parent's first ``num_tokens`` tokens, whose blocks the parent has allocated; the step
        that computes the last of them may still be running. A partly filled last block is copied on the first write.
        """
        parent = self._requests[parent_id]
        assert child_id not in self._requests
        assert parent.num_computed <= num_tokens <= parent.capacity
        blocks = tuple(
            list(table[: -(-num_tokens // size)]) for size, table in zip(self._sizes, parent.blocks, strict=True)
        )
        for table, num_freed in zip(blocks, parent.num_freed, strict=True):
            for block in table[num_freed:]:
                self._pool.share(BlockId(block))
        self._requests[child_id] = child = RequestTables(
            blocks, list(parent.num_freed), list(parent.chain), list(parent.num_hashed), num_tokens, tail_shared=True
        )
        child.capacity = self._capacity(child)
        parent.tail_shared = True

    def block_copies(self) -> list[tuple[int, int]]:
        """Block copies (source, destination) to make, in this order, before the next forward. Drained by the call."""
        copies, self._copies = self._copies, []
        return [(source, destination) for source, destination in copies]

    def computed(self, request_id: str, token_ids: TokenSlice, num_tokens: int) -> None:
        """K and V of the request's first ``num_tokens`` tokens are stored, for good: full blocks enter the prefix cache,
        and blocks that position ``num_tokens`` and later ones do not see are given up.

        token_ids: the request's token ids at positions [begin, end).
        """
        tables = self._requests[request_id]
        tables.num_computed = num_tokens
        if num_tokens < tables.next_event:
            return
        tables.next_event = 1 << 62
        for g, size in enumerate(self._sizes):
            if self.prefix_caching:
                if num_tokens // size > tables.num_hashed[g]:
                    self._hash_blocks(tables, g, token_ids)
                tables.next_event = min(tables.next_event, (tables.num_hashed[g] + 1) * size)
            window = self._windows[g]
            if window is not None:
                behind = (num_tokens - window + 1) // size
                if behind > tables.num_freed[g]:
                    self._free_behind(tables, g, behind)
                tables.next_event = min(tables.next_event, (tables.num_freed[g] + 1) * size + window - 1)

    def trim(self, request_id: str) -> None:
        """Give up the blocks behind those of the computed tokens: they were for tokens that did not come."""
        tables = self._requests[request_id]
        for size, table in zip(self._sizes, tables.blocks, strict=True):
            needed = -(-tables.num_computed // size)
            for block in table[needed:]:
                self._pool.release(BlockId(block), False)
            del table[needed:]
        tables.capacity = self._capacity(tables)

    def _hash_blocks(self, tables: RequestTables, group: int, token_ids: TokenSlice) -> None:
        size = self._sizes[group]
        begin, end = tables.num_hashed[group], tables.num_computed // size
        packed = pack(token_ids(begin * size, end * size))
        item = len(packed) // (end - begin)
        for i in range(begin, end):
            tokens = packed[(i - begin) * item : (i - begin + 1) * item]
            block = BlockId(tables.blocks[group][i])
            tables.chain[group] = self._cache.add(tables.chain[group], tokens, block)
        tables.num_hashed[group] = end

    def _free_behind(self, tables: RequestTables, group: int, num_freed: int) -> None:
        table = tables.blocks[group]
        for i in range(tables.num_freed[group], num_freed):
            block = BlockId(table[i])
            table[i] = NO_BLOCK
            self._pool.release(block, block in self._cache)
        tables.num_freed[group] = num_freed

    def block_tables(self, request_id: str) -> BlockTables:
        """Per group the request's block ids: live lists, to be read only. Behind the window they are meaningless."""
        return self._requests[request_id].blocks

    def free(self, request_id: str) -> None:
        """Return the request's blocks, tails first; a request without blocks is fine."""
        tables = self._requests.pop(request_id, None)
        if tables is None:
            return
        ends = [
            (i * self._sizes[g], block)
            for g, table in enumerate(tables.blocks)
            for i, block in enumerate(table)
            if i >= tables.num_freed[g]
        ]
        if len(tables.blocks) > 1:  # all groups together: a prefix is of use while every group has it
            ends.sort(key=lambda end: end[0])
        for _, block in reversed(ends):
            self._pool.release(BlockId(block), block in self._cache)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content. Running requests keep their blocks."""
        for block in self._cache.blocks:
            self._cache.remove(block)
            self._pool.forget(block)

    def usage(self) -> KVUsage:
        """Counts every block: for reports, not for every step."""
        allocated, stored = slot_bytes(self.layout, self._requests.values())
        return KVUsage(
            num_blocks=self.num_blocks,
            used_blocks=self.num_blocks - self._pool.num_free_blocks,
            cached_blocks=self._pool.num_evictable_blocks,
            touched_blocks=self._pool.num_touched_blocks,
            allocated_bytes=allocated,
            stored_bytes=stored,
        )

    def check_invariants(self) -> None:
        """Every block is free or in as many tables as it has references; nobody writes what another one reads."""
        references: Counter[BlockId] = Counter()
        for tables in self._requests.values():
            for g, (size, table) in enumerate(zip(self._sizes, tables.blocks, strict=True)):
                live = table[tables.num_freed[g] :]
                assert len(set(live)) == len(live), "a block is in a table twice"
                references.update(BlockId(b) for b in live)
                assert len(table) * size >= tables.capacity >= 0
                assert tables.num_freed[g] == 0 or tables.num_freed[g] * size <= tables.num_computed
                window = self._windows[g]
                assert window is not None or tables.num_freed[g] == 0, "full attention gives nothing up"
                if window is not None:
                    assert tables.num_freed[g] * size <= max(0, tables.num_computed - window + 1), "freed too early"
        self._pool.check_invariants(dict(references), set(self._cache.blocks))
        self._cache.check_invariants()
        for tables in self._requests.values():
            if tables.tail_shared:
                continue
            for size, table in zip(self._sizes, tables.blocks, strict=True):
                for block in table[tables.num_computed // size :]:
                    assert references[BlockId(block)] == 1, "a block to be written is shared"
                    assert block not in self._cache, "a block to be written is in the prefix cache"
