"""KVStorage: the memory of the KV pool. Managers hold block ids; only this file and the kernels see bytes."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import CapacityError
from hotloop.kv_cache.layout import KVLayout

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)  # not every system has it


@dataclass(frozen=True, slots=True)
class KVStorage:
    """``pool``: uint8 [num_blocks * block_bytes]. Anonymous private pages: memory is taken as blocks are first written,
    and a forked process writes to copies of its own."""

    layout: KVLayout
    num_blocks: int
    pool: NDArray[np.uint8]

    @classmethod
    def allocate(cls, layout: KVLayout, num_blocks: int) -> KVStorage:
        """Raises CapacityError if the process may not take so much address space."""
        size = num_blocks * layout.block_bytes
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, OverflowError) as error:
            raise CapacityError(
                f"no memory for a KV pool of {size} bytes ({error}); lower max_model_len or kv_cache_memory_bytes"
            ) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # blocks lie anywhere: with small pages, every one costs a page walk
                memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(layout, num_blocks, np.frombuffer(memory, np.uint8))

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy the bytes of blocks, (source id, destination id) each, in order."""
        blocks = self.pool.reshape(self.num_blocks, self.layout.block_bytes)
        for source, destination in pairs:
            blocks[destination] = blocks[source]

    @property
    def nbytes(self) -> int:
        return int(self.pool.nbytes)
