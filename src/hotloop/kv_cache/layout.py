"""How KV blocks are laid out: one pool of equal byte-size blocks, shared by all KV groups.

A block of group g holds, for each of the group's layers, K then V of its tokens; after them, for int8, the scales of each
layer's K and V. Every group fills a block with as many tokens as fit, so a group with few layers has more tokens in a
block. docs/kv-cache.md has the byte diagram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hotloop.config import KVDtype

KV_ITEM_BYTES: dict[KVDtype, int] = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
SCALE_BYTES = 2  # bf16
KEY_GROUP_SIZE = 32  # elements of an int8 K, and of the query that meets it, that share a scale
VALUE_GROUP_SIZE = 64  # of an int8 V, which needs less precision
BLOCK_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose KV blocks are allocated together: same heads, same head_dim, same window (None: full attention).

    precise_keys: with dtype int8, K is stored as f16: the keys of models with a K bias have a few channels of large
    magnitude, which leave too little of int8 for the others.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    precise_keys: bool = False


class LayerOffsets(NamedTuple):
    """Where a layer's parts start, in bytes from a block's start; scales are used by int8 only."""

    k: int
    v: int
    k_scale: int
    v_scale: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Byte geometry of the pool. block_size: tokens per block of the group with the most bytes per token."""

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: KVDtype

    def key_dtype(self, group: int) -> KVDtype:
        """How K is stored; V is stored in ``dtype``."""
        return "f16" if self.dtype == "int8" and self.groups[group].precise_keys else self.dtype

    @property
    def dtype_name(self) -> str:
        """For people: ``int8 (K: f16)`` where K and V differ."""
        keys = {self.key_dtype(g) for g in range(len(self.groups))} - {self.dtype}
        return f"{self.dtype} (K: {', '.join(sorted(keys))})" if keys else self.dtype

    def _vector_bytes(self, group: int) -> tuple[int, int, int, int]:
        """Bytes of one token and KV head in one layer: K, V, scales of K, scales of V."""
        head_dim = self.groups[group].head_dim
        key, value = self.key_dtype(group), self.dtype
        return (
            head_dim * KV_ITEM_BYTES[key],
            head_dim * KV_ITEM_BYTES[value],
            -(-head_dim // KEY_GROUP_SIZE) * SCALE_BYTES if key == "int8" else 0,
            -(-head_dim // VALUE_GROUP_SIZE) * SCALE_BYTES if value == "int8" else 0,
        )

    def token_bytes(self, group: int) -> int:
        """Bytes one token takes in all layers of ``group``."""
        g = self.groups[group]
        return len(g.layers) * g.num_kv_heads * sum(self._vector_bytes(group))

    @property
    def block_bytes(self) -> int:
        most = self.block_size * max(self.token_bytes(g) for g in range(len(self.groups)))
        return -(-most // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES

    def tokens_per_block(self, group: int) -> int:
        return self.block_bytes // self.token_bytes(group)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """tokens_per_block of every group."""
        return tuple(self.tokens_per_block(group) for group in range(len(self.groups)))

    def layer_offsets(self, layer: int) -> LayerOffsets:
        """Where the layer's K, V and scales lie inside a block."""
        group = self.group_of(layer)
        g = self.groups[group]
        vectors = g.num_kv_heads * self.tokens_per_block(group)
        k, v, k_scale, v_scale = (vectors * n for n in self._vector_bytes(group))
        index = g.layers.index(layer)
        scales = len(g.layers) * (k + v) + index * (k_scale + v_scale)
        return LayerOffsets(index * (k + v), index * (k + v) + k, scales, scales + k_scale)

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
