"""A request's timeline, and the figures made from it. Field names, units and meanings: schema.toml beside this file."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """Moments of one request, in seconds of time.perf_counter, and what its decode steps read."""

    arrival_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_tokens: int = 0
    decode_kv_bytes: int = 0

    def record(self, now_s: float, num_tokens: int, kv_bytes: int) -> None:
        """One step emitted ``num_tokens`` of this request after reading ``kv_bytes`` of KV cache."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        else:
            self.decode_kv_bytes += kv_bytes
        self.last_token_s = now_s
        self.num_tokens += num_tokens

    def timings(self, weight_bytes_per_step: int, read_bandwidth_bytes_per_s: float) -> dict[str, float | int]:
        """The ``timings`` object of an answer. read_bandwidth_bytes_per_s: 0 where it could not be measured."""
        arrival_s = self.arrival_s
        first_s = self.first_token_s if self.first_token_s is not None else arrival_s
        decode_s = (self.last_token_s or first_s) - first_s
        decode_steps = max(0, self.num_tokens - 1)
        tokens_per_s = decode_steps / decode_s if decode_s > 0 else 0.0
        kv_bytes = self.decode_kv_bytes / decode_steps if decode_steps else 0.0
        read_bytes_per_s = (weight_bytes_per_step + kv_bytes) * tokens_per_s
        return {
            "ttft_s": first_s - arrival_s,
            "decode_s": decode_s,
            "decode_tokens_per_s": tokens_per_s,
            "weight_bytes_per_step": weight_bytes_per_step,
            "kv_bytes_per_step": round(kv_bytes),
            "read_bandwidth_ceiling_bytes_per_s": read_bandwidth_bytes_per_s,
            "mbu": read_bytes_per_s / read_bandwidth_bytes_per_s if read_bandwidth_bytes_per_s else 0.0,
        }
