"""PrefixCache: which full blocks hold the K/V of which tokens. Ids and hashes only, no arrays."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType

from hotloop.kv_cache.block_pool import BlockId
from hotloop.kv_cache.layout import KVLayout

BlockHash = NewType("BlockHash", bytes)


def root_hash(group: int, tokens_per_block: int, salt: str, fingerprint: bytes) -> BlockHash:
    """The parent of a group's first block. Every field has its length in front: no two sets of fields read alike."""
    fields = (b"group", str(group).encode(), str(tokens_per_block).encode(), b"salt", salt.encode(), fingerprint)
    digest = hashlib.blake2b(digest_size=16)
    for field in fields:
        digest.update(len(field).to_bytes(8, "little") + field)
    return BlockHash(digest.digest())


def child_hash(parent: BlockHash, tokens: bytes) -> BlockHash:
    """The hash of a block: of all tokens up to its end, since the parent's is of all before it."""
    return BlockHash(hashlib.blake2b(parent + tokens, digest_size=16).digest())


def pack(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The first ``num_tokens`` tokens of a prompt are in these blocks.

    blocks: per KV group one for each ceil(num_tokens / tokens_per_block) blocks; None for those behind the group's window.
    The last one may hold more tokens of the same prompt than are counted. hashes: per group, the chain's hash after
    the last block that is wholly counted.
    """

    num_tokens: int
    blocks: tuple[tuple[BlockId | None, ...], ...]
    hashes: tuple[BlockHash, ...]


class PrefixCache:
    """A map from block hashes to blocks, both ways; `KVCacheManager` decides what enters and leaves."""

    def __init__(self, layout: KVLayout, fingerprint: bytes) -> None:
        self._groups = [(layout.tokens_per_block(g), group.window) for g, group in enumerate(layout.groups)]
        self._fingerprint = fingerprint
        self._blocks: dict[BlockHash, BlockId] = {}
        self._contents: dict[BlockId, tuple[BlockHash, bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._contents

    @property
    def blocks(self) -> list[BlockId]:
        return list(self._contents)

    def root(self, group: int, salt: str) -> BlockHash:
        return root_hash(group, self._groups[group][0], salt, self._fingerprint)

    def add(self, parent: BlockHash, tokens: bytes, block: BlockId) -> BlockHash:
        """``block`` holds ``tokens`` after the chain ``parent``; the first block of a content stays the known one.

        Returns the hash of the chain that ends with the block.
        """
        key = child_hash(parent, tokens)
        if block not in self._contents and key not in self._blocks:
            self._blocks[key] = block
            self._contents[block] = key, tokens
        return key

    def remove(self, block: BlockId) -> None:
        key, _ = self._contents.pop(block)
        del self._blocks[key]

    def match(self, token_ids: Sequence[int], salt: str, max_tokens: int) -> PrefixHit | None:
        """The longest prefix of at most ``max_tokens`` tokens that every group can serve: all of its blocks for full
        attention; for a window group those with a token that position ``num_tokens`` sees. None if there is no such prefix.
        """
        chains = [
            _Chain(self._find, self.root(g, salt), size, token_ids) for g, (size, _) in enumerate(self._groups)
        ]
        length = max_tokens
        for chain, (size, window) in zip(chains, self._groups, strict=True):
            if window is None:
                length = min(length, chain.first_missing(-(-length // size)) * size)
        settled = False
        while length and not settled:  # what one group lacks shortens the prefix for all
            before = length
            for chain, (_, window) in zip(chains, self._groups, strict=True):
                if window is not None:
                    length = chain.windowed(length, window)
            settled = length == before
        if not length:
            return None
        blocks = []
        for chain, (size, window) in zip(chains, self._groups, strict=True):
            begin = 0 if window is None else max(0, length - window + 1) // size
            end = -(-length // size)
            blocks.append((None,) * begin + tuple(chain.block(i) for i in range(begin, end)))
        hashes = tuple(chain.hash_after(length // size) for chain, (size, _) in zip(chains, self._groups, strict=True))
        return PrefixHit(length, tuple(blocks), hashes)

    def _find(self, key: BlockHash, tokens: bytes) -> BlockId | None:
        block = self._blocks.get(key)
        if block is None or self._contents[block][1] != tokens:
            return None
        return block

    def check_invariants(self) -> None:
        assert {block: key for key, block in self._blocks.items()} == {b: k for b, (k, _) in self._contents.items()}


class _Chain:
    """The hashes of one group's full blocks of a prompt, made as they are asked for, and the blocks found for them."""

    def __init__(
        self, find: Callable[[BlockHash, bytes], BlockId | None], root: BlockHash, size: int, token_ids: Sequence[int]
    ) -> None:
        self._find = find
        self._size = size
        self._packed = pack(token_ids)
        self._item = self._size * array("i").itemsize
        self._hashes = [root]
        self._blocks: list[BlockId | None] = []

    def block(self, index: int) -> BlockId | None:
        while len(self._blocks) <= index:
            i = len(self._blocks)
            tokens = self._packed[i * self._item : (i + 1) * self._item]
            if len(tokens) < self._item:  # not a full block
                return None
            self._hashes.append(child_hash(self._hashes[-1], tokens))
            self._blocks.append(self._find(self._hashes[-1], tokens))
        return self._blocks[index]

    def hash_after(self, num_blocks: int) -> BlockHash:
        if num_blocks:
            self.block(num_blocks - 1)
        return self._hashes[num_blocks]

    def first_missing(self, end: int) -> int:
        """The first of the blocks [0, end) that is not there, else ``end``."""
        return next((i for i in range(end) if self.block(i) is None), end)

    def windowed(self, length: int, window: int) -> int:
        """The longest prefix of at most ``length`` tokens of which every block with a token of the window is there."""
        while length:
            first = max(0, length - window + 1) // self._size
            last = (length - 1) // self._size
            missing = next((i for i in range(last, first - 1, -1) if self.block(i) is None), None)
            if missing is None:
                return length
            length = missing * self._size
        return 0
