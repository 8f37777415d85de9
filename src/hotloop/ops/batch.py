"""ForwardBatch: one step's tokens as flat arrays, the only thing a runner hands to a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens of R requests, request by request; L of the rows get logits.

    token_ids: int32 [T]. positions: int32 [T], absolute. query_start: int32 [R + 1], request r owns tokens
    query_start[r]:query_start[r + 1]. seq_lens: int32 [R], tokens in the KV cache once this step has appended.
    logits_rows: int32 [L], indices into the T tokens. Per KV group: block_tables int32 [R, max_blocks]
    (position p of request r lives in block_tables[r, p // block_size]) and slot_mapping int64 [T]
    (block_id * block_size + p % block_size, where the token's K and V go).
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_start: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    logits_rows: NDArray[np.int32]
    block_tables: tuple[NDArray[np.int32], ...]
    slot_mapping: tuple[NDArray[np.int64], ...]
