"""Paged KV caches for attention tests: random contents, shuffled blocks, NaN where a kernel must not look."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.config import KVDtype
from hotloop.kv_cache.layout import KEY_GROUP_SIZE, VALUE_GROUP_SIZE, KVGroup, KVLayout
from hotloop.quant.kv import dequantize_kv, from_bf16, quantize_kv, quantize_queries, to_bf16

F32 = NDArray[np.float32]


def stored(x: F32, dtype: KVDtype, group_size: int) -> F32:
    """The values that the cache holds of vectors x."""
    if dtype == "int8":
        return dequantize_kv(*quantize_kv(x, group_size), group_size)
    if dtype == "bf16":
        return from_bf16(to_bf16(x))
    return x.astype(np.float16 if dtype == "f16" else np.float32).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Case:
    """One request: the queries of its last ``tokens`` positions over ``context`` cached positions."""

    tokens: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    window: int = 0
    softcap: float = 0.0
    dtype: KVDtype = "f16"
    precise_keys: bool = False

    @property
    def positions(self) -> NDArray[np.int32]:
        return np.arange(self.context - self.tokens, self.context, dtype=np.int32)

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))

    def layout(self, block_size: int) -> KVLayout:
        group = KVGroup((0,), self.num_kv_heads, self.head_dim, self.window or None, self.precise_keys)
        return KVLayout((group,), block_size, self.dtype)

    def queries(self) -> F32:
        """float32 [tokens, num_heads * head_dim]."""
        shape = (self.tokens, self.num_heads * self.head_dim)
        return np.random.default_rng(1).normal(size=shape).astype(np.float32)

    def keys_values(self) -> tuple[F32, F32]:
        """K and V before they are stored, float32 [context, num_kv_heads, head_dim]; exact in a float dtype."""
        rng = np.random.default_rng(2)
        shape = (self.context, self.num_kv_heads, self.head_dim)
        k, v = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)
        return (k, v) if self.dtype == "int8" else (stored(k, self.dtype, 0), stored(v, self.dtype, 0))

    def first_position_seen(self) -> int:
        first = self.context - self.tokens
        return max(0, first - self.window + 1) if self.window else 0

    def run(
        self,
        isa: str,
        block_size: int = 16,
        tokens_per_call: int = 16,
        heads_per_call: int = 64,
        spans_per_call: int = 0,
        k: F32 | None = None,
        v: F32 | None = None,
    ) -> F32:
        """The kernel's output [tokens, num_heads * head_dim]. Unused slots and unused blocks hold NaN."""
        default_k, default_v = self.keys_values()
        k, v = default_k if k is None else k, default_v if v is None else v
        layout = self.layout(block_size)
        num_blocks = -(-self.context // block_size)
        pool = np.full((num_blocks + 3) * layout.block_bytes, 0xFF, np.uint8)  # NaN in every dtype, codes of -1
        table = np.random.default_rng(block_size).permutation(num_blocks + 3)[:num_blocks].astype(np.int32)
        dtypes = (getattr(_native.KvDtype, d.upper()) for d in (layout.key_dtype(0), self.dtype))
        kv = _native.KvLayer(
            pool, *layout.layer_offsets(0), layout.block_bytes, 0, block_size,
            self.num_kv_heads, self.head_dim, self.window, *dtypes,
        )  # fmt: skip
        seen = np.arange(self.first_position_seen(), self.context)
        slots = (table[seen // block_size] * block_size + seen % block_size).astype(np.int32)
        for is_key, x in ((True, k), (False, v)):
            _native.append_kv(isa, kv, is_key, np.ascontiguousarray(x[seen].reshape(len(seen), -1)), slots)
        # Blocks freed behind the window: an id that must not be followed.
        table[: self.first_position_seen() // block_size] = -(2**30)
        return np.asarray(
            _native.attention(
                isa, self.queries(), kv, table, self.positions, self.scale, self.softcap,
                tokens_per_call, heads_per_call, spans_per_call,
            )
        )  # fmt: skip

    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The float64 definition and, per element, the bound of a float32 evaluation's error."""
        k, v = self.keys_values()
        key_dtype = self.layout(16).key_dtype(0)
        k, v = stored(k, key_dtype, KEY_GROUP_SIZE), stored(v, self.dtype, VALUE_GROUP_SIZE)
        k, v = k.astype(np.float64), v.astype(np.float64)
        q = self.queries().reshape(self.tokens, self.num_heads, self.head_dim)
        q = (quantize_queries(q, KEY_GROUP_SIZE) if key_dtype == "int8" else q).astype(np.float64)
        out = np.zeros_like(q)
        bound = np.zeros_like(q)
        unit = 2.0**-24
        group = self.num_heads // self.num_kv_heads
        for t, position in enumerate(self.positions):
            first = max(0, position - self.window + 1) if self.window else 0
            seen = slice(first, position + 1)
            for head in range(self.num_heads):
                keys, values = k[seen, head // group], v[seen, head // group]
                scores = self.scale * (keys @ q[t, head])
                # A dot of n products in 16 chains and 4 levels: n / 16 + 4 roundings of the magnitudes' sum.
                magnitude = self.scale * (np.abs(keys) @ np.abs(q[t, head]))
                score_error = (self.head_dim / 16 + 5) * unit * magnitude
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                    score_error = score_error + 8 * unit * np.abs(scores)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[t, head] = weights @ values
                # exp and the subtraction before it; sums of up to 256 per span and one merge for each span.
                roundings = np.abs(scores - scores.max()) + 256 + 16 + 4 * len(scores) / 256
                relative = 2 * score_error.max() + unit * roundings
                bound[t, head] = (relative * weights) @ np.abs(values) + relative.max() * np.abs(out[t, head])
        return out.reshape(self.tokens, -1), bound.reshape(self.tokens, -1)
