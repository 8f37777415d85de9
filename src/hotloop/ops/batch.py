"""ForwardBatch: one step's tokens as flat arrays, the only thing a runner hands to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one request, for one step.

    start: absolute position of the first token. block_tables: per KV group, the request's block ids.
    logits: of which of the tokens.
    """

    token_ids: Sequence[int]
    start: int
    block_tables: Sequence[Sequence[int]]
    logits: Literal["all", "last", "none"] = "all"


def build_batch(chunks: Sequence[Chunk], block_size: int | Sequence[int]) -> ForwardBatch:
    """The ForwardBatch of one step over `chunks`, one per request. block_size: tokens, may differ per KV group."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    query_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = [np.arange(c.start, c.start + n, dtype=np.int32) for c, n in zip(chunks, lengths, strict=True)]
    rows = [
        np.arange({"all": begin, "last": end - 1, "none": end}[chunk.logits], end, dtype=np.int32)
        for chunk, begin, end in zip(chunks, query_start[:-1], query_start[1:], strict=True)
    ]
    tables, slot_mapping = [], []
    for group in range(len(chunks[0].block_tables)):
        width = max(len(chunk.block_tables[group]) for chunk in chunks)
        table = np.zeros((len(chunks), width), np.int32)
        size = block_size if isinstance(block_size, int) else block_size[group]
        slots = []
        for row, chunk, where in zip(table, chunks, positions, strict=True):
            row[: len(chunk.block_tables[group])] = chunk.block_tables[group]
            slots.append(row[where // size].astype(np.int64) * size + where % size)
        tables.append(table)
        slot_mapping.append(np.concatenate(slots))
    return ForwardBatch(
        token_ids=np.concatenate([np.asarray(chunk.token_ids, np.int32) for chunk in chunks]),
        positions=np.concatenate(positions),
        query_start=query_start,
        seq_lens=np.array([c.start + n for c, n in zip(chunks, lengths, strict=True)], np.int32),
        logits_rows=np.concatenate(rows),
        block_tables=tuple(tables),
        slot_mapping=tuple(slot_mapping),
    )
