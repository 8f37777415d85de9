"""What a request's parameters do to a row of logits before anything is drawn: few ids, each with its change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Mask = NDArray[np.uint32]

NO_IDS: Ids = np.empty(0, np.int32)
NO_FLOATS: Floats = np.empty(0, np.float32)


class Edits(NamedTuple):
    """Changes to one row of logits, applied in this order (docs/sampling.md); no array holds an id twice.

    mask uint32 [ceil(vocab_size / 32)]: bit id % 32 of word id / 32 says whether id is allowed. banned int32 [n] and barred
    int32 [b]: become -inf; barred ids stay where without them nothing of what the mask allows would be left. bias_ids
    int32 [a], bias float32 [a]: is added. seen_ids int32 [s]: ids the penalties see, counts int32 [s]: how often each is in
    the output (0: in the prompt only). dry_ids int32 [d], dry float32 [d]: is subtracted.
    """

    banned: Ids = NO_IDS
    barred: Ids = NO_IDS
    bias_ids: Ids = NO_IDS
    bias: Floats = NO_FLOATS
    seen_ids: Ids = NO_IDS
    counts: Ids = NO_IDS
    dry_ids: Ids = NO_IDS
    dry: Floats = NO_FLOATS
    mask: Mask | None = None


class TokenCounts:
    """Distinct token ids and how often each was added; ids given at the start count 0. Removal in reverse order only."""

    __slots__ = ("_counts", "_first_added", "_ids", "_size", "_slots")

    def __init__(self, initial_ids: Iterable[int]) -> None:
        initial = np.unique(np.fromiter(initial_ids, np.int32))
        self._size = self._first_added = len(initial)
        self._ids = np.concatenate([initial, np.zeros(64, np.int32)])
        self._counts = np.zeros(len(self._ids), np.int32)
        self._slots = {token_id: slot for slot, token_id in enumerate(initial.tolist())}

    @property
    def ids(self) -> Ids:
        """A view until the next change."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Ids:
        """A view until the next change."""
        return self._counts[: self._size]

    def reserve(self, num_ids: int) -> None:
        """Room for so many more: views of now are right again once what is added in it was removed."""
        while self._size + num_ids > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])

    def add(self, token_id: int) -> None:
        slot = self._slots.get(token_id)
        if slot is None:
            self.reserve(1)
            slot = self._slots[token_id] = self._size
            self._ids[slot] = token_id
            self._size += 1
        self._counts[slot] += 1

    def remove(self, token_id: int) -> None:
        slot = self._slots[token_id]
        self._counts[slot] -= 1
        if slot >= self._first_added and self._counts[slot] == 0:
            assert slot == self._size - 1, "ids are removed in the reverse order of their addition"
            del self._slots[token_id]
            self._size = slot
