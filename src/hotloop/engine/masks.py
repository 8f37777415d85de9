"""Masks: which tokens the requests of a step may draw, computed on a thread of its own while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TypeAlias

import numpy as np

from hotloop.engine.side_thread import SideThread
from hotloop.sampling.constraint import Constraint, Mask

Wanted: TypeAlias = Sequence[tuple[Constraint, Sequence[int], Sequence[int]]]  # a constraint, the output so far, its drafts
RowMasks: TypeAlias = list[Mask | None]  # None: all tokens are allowed


class Masks:
    """``start`` before a forward pass, ``finish`` after it."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._rows: Mask = np.empty((0, vocab_size // 32 + 1), np.uint32)  # with room for a constraint's end token
        self._thread = SideThread("hotloop-masks")
        self._running: Future[list[RowMasks | Exception]] | None = None

    def start(self, wanted: Wanted) -> None:
        """Begin with the masks of these constraints; nobody else may use them, or change the outputs, until ``finish``."""
        if self._running is not None:  # of a step that was interrupted
            wait([self._running])
            self._running = None
        if not wanted:
            return
        num_rows = len(wanted) + sum(len(draft_token_ids) for _, _, draft_token_ids in wanted)
        if num_rows > len(self._rows):
            self._rows = np.empty((num_rows, self._rows.shape[1]), np.uint32)
        self._running = self._thread.submit(lambda: self._fill(wanted))

    def finish(self) -> list[RowMasks | Exception]:
        """For each constraint what its next token and those after its drafts may be, as far as the drafts may be drawn: uint32
        [ceil(vocab_size / 32)] each, valid until the next ``start``; or what went wrong with the first of them."""
        if self._running is None:
            return []
        masks = self._running.result()
        self._running = None
        return masks

    def _fill(self, wanted: Wanted) -> list[RowMasks | Exception]:
        masks: list[RowMasks | Exception] = []
        rows = iter(self._rows)
        for constraint, output_token_ids, draft_token_ids in wanted:
            filled: RowMasks = []
            try:
                constraint.sync(output_token_ids)
                for token_id in (*draft_token_ids, None):
                    row = next(rows)
                    filled.append(row[: self._num_words] if constraint.fill_mask(row) else None)
                    if token_id is None or not constraint.push_draft(token_id):
                        break
            except Exception as error:
                if not filled:
                    masks.append(error)
                    continue
            masks.append(filled)
        return masks
