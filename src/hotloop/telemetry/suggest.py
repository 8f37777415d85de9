"""Which catalog model is the largest that fits this machine, and how fast it would decode."""

from __future__ import annotations

from hotloop.machine import available_memory_bytes
from hotloop.weights.catalog import CatalogEntry, catalog

_HEADROOM = 1.25  # weights, KV pool, activations and the interpreter, relative to the file


def largest_that_fits(memory_bytes: int) -> CatalogEntry | None:
    """The catalog entry with the most parameters whose weights and working memory fit in ``memory_bytes``."""
    fitting = [e for e in catalog().values() if e.size_bytes * _HEADROOM <= memory_bytes]
    return max(fitting, key=lambda e: (e.parameters, e.size_bytes), default=None)


def suggestion(read_bandwidth_bytes_per_s: float, share: float) -> str:
    """One line for a user. share: the part of the bandwidth that decode reached here, in (0, 1]."""
    memory = available_memory_bytes()
    entry = largest_that_fits(memory)
    if entry is None:
        return f"no catalog model fits the {memory / 1e9:.1f} GB that are free here"
    tokens_per_s = read_bandwidth_bytes_per_s * share / entry.size_bytes
    return (
        f"largest catalog model for the {memory / 1e9:.1f} GB free here: {entry.name} "
        f"({entry.size_bytes / 1e9:.1f} GB), about {tokens_per_s:.1f} tokens/s: hotloop run {entry.name}"
    )
