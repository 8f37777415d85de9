"""How KV blocks are laid out: one pool of equal byte-size blocks, shared by all KV groups.

A block of group g holds, for each of the group's layers, K then V, each [num_kv_heads, tokens_per_block, head_dim].
Every group fills a block with as many tokens as fit, so a group with few layers has more tokens in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.config import KVDtype

KV_ITEM_BYTES: dict[KVDtype, int] = {"f32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose KV blocks are allocated together: same heads, same head_dim, same window (None: full attention)."""

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Byte geometry of the pool. block_size: tokens per block of the group with the most bytes per token."""

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: KVDtype

    def token_bytes(self, group: int) -> int:
        """Bytes one token takes in all layers of ``group``."""
        g = self.groups[group]
        return len(g.layers) * 2 * g.num_kv_heads * g.head_dim * KV_ITEM_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.block_size * max(self.token_bytes(g) for g in range(len(self.groups)))

    def tokens_per_block(self, group: int) -> int:
        return self.block_bytes // self.token_bytes(group)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """tokens_per_block of every group."""
        return tuple(self.tokens_per_block(group) for group in range(len(self.groups)))

    def layer_offsets(self, layer: int) -> tuple[int, int]:
        """Byte offsets of the layer's K and V inside a block."""
        group = self.group_of(layer)
        g = self.groups[group]
        half = g.num_kv_heads * self.tokens_per_block(group) * g.head_dim * KV_ITEM_BYTES[self.dtype]
        k_offset = g.layers.index(layer) * 2 * half
        return k_offset, k_offset + half

    def group_of(self, layer: int) -> int:
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index
        raise KeyError(f"layer {layer} has no KV group")

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens of one request take, all groups together."""
        return sum(-(-num_tokens // self.tokens_per_block(g)) for g in range(len(self.groups)))

    def bytes_read(self, seq_lens: Sequence[int]) -> int:
        """KV bytes one decode step reads for requests of these lengths (windows respected)."""
        return sum(
            self.token_bytes(g) * (min(n, group.window) if group.window else n)
            for g, group in enumerate(self.groups)
            for n in seq_lens
        )
