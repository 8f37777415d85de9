"""Paged KV caches for attention tests: random contents, shuffled blocks, NaN where a kernel must not look."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop import _native

F32 = NDArray[np.float32]


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
    f16: bool = True

    @property
    def positions(self) -> NDArray[np.int32]:
        return np.arange(self.context - self.tokens, self.context, dtype=np.int32)

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))

    def queries(self) -> F32:
        """float32 [tokens, num_heads * head_dim]."""
        shape = (self.tokens, self.num_heads * self.head_dim)
        return np.random.default_rng(1).normal(size=shape).astype(np.float32)

    def keys_values(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """K and V in the cache's dtype, [context, num_kv_heads, head_dim]."""
        rng = np.random.default_rng(2)
        shape = (self.context, self.num_kv_heads, self.head_dim)
        dtype = np.float16 if self.f16 else np.float32
        return rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype)

    def first_position_seen(self) -> int:
        first = self.context - self.tokens
        return max(0, first - self.window + 1) if self.window else 0

    def run(
        self,
        isa: str,
        block_size: int = 16,
        tokens_per_call: int = 16,
        heads_per_call: int = 64,
        k: NDArray[np.floating] | None = None,
        v: NDArray[np.floating] | None = None,
    ) -> F32:
        """The kernel's output [tokens, num_heads * head_dim]. Unused slots and unused blocks hold NaN."""
        default_k, default_v = self.keys_values()
        k, v = default_k if k is None else k, default_v if v is None else v
        num_blocks = -(-self.context // block_size)
        shape = (num_blocks + 3, 2, self.num_kv_heads, block_size, self.head_dim)
        pool = np.full(shape, np.nan, k.dtype)
        table = np.random.default_rng(block_size).permutation(shape[0])[:num_blocks].astype(np.int32)
        for position in range(self.first_position_seen(), self.context):
            block, slot = table[position // block_size], position % block_size
            pool[block, 0, :, slot] = k[position]
            pool[block, 1, :, slot] = v[position]
        # Blocks freed behind the window: an id that must not be followed.
        table[: self.first_position_seen() // block_size] = -(2**30)
        block_bytes = pool[0].nbytes
        raw = pool.reshape(-1).view(np.uint8)
        return np.asarray(
            _native.attention(
                isa, self.queries(), raw, raw[block_bytes // 2 :], block_bytes, table, self.positions,
                block_size, self.num_kv_heads, self.head_dim, self.window,
                _native.KvDtype.F16 if self.f16 else _native.KvDtype.F32,
                self.scale, self.softcap, tokens_per_call, heads_per_call,
            )
        )  # fmt: skip

    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The float64 definition and, per element, the bound of a float32 evaluation's error."""
        k, v = (x.astype(np.float64) for x in self.keys_values())
        q = self.queries().astype(np.float64).reshape(self.tokens, self.num_heads, self.head_dim)
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
