"""KVStorage: the memory of the KV pool. Managers hold block ids; only this file and the kernels see bytes."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.kv_cache.layout import KVLayout


@dataclass(frozen=True, slots=True)
class KVStorage:
    """``pool``: uint8 [num_blocks * block_bytes]. Anonymous pages: memory is taken as blocks are first written."""

    layout: KVLayout
    num_blocks: int
    pool: NDArray[np.uint8]

    @classmethod
    def allocate(cls, layout: KVLayout, num_blocks: int) -> KVStorage:
        memory = mmap.mmap(-1, num_blocks * layout.block_bytes)
        return cls(layout, num_blocks, np.frombuffer(memory, np.uint8))

    @property
    def nbytes(self) -> int:
        return int(self.pool.nbytes)
