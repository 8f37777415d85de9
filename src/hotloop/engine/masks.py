"""Masks: which tokens the requests of a step may draw, computed on a thread of its own while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait

import numpy as np

from hotloop.engine.side_thread import SideThread
from hotloop.sampling.grammar import Constraint, Mask

Wanted = Sequence[tuple[Constraint, Sequence[int]]]  # a constraint and the output so far


class Masks:
    """``start`` before a forward pass, ``finish`` after it."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._rows: Mask = np.empty((0, vocab_size // 32 + 1), np.uint32)  # with room for a constraint's end token
        self._thread = SideThread("hotloop-masks")
        self._running: Future[list[Mask | Exception]] | None = None

    def start(self, wanted: Wanted) -> None:
        """Begin with the masks of these constraints; nobody else may use them, or change the outputs, until ``finish``."""
        if self._running is not None:  # of a step that was interrupted
            wait([self._running])
            self._running = None
        if len(wanted) > len(self._rows):
            self._rows = np.empty((len(wanted), self._rows.shape[1]), np.uint32)
        if wanted:
            self._running = self._thread.submit(lambda: self._fill(wanted))

    def finish(self) -> list[Mask | Exception]:
        """For each constraint uint32 [ceil(vocab_size / 32)], valid until the next ``start``; or what went wrong with it."""
        if self._running is None:
            return []
        masks = self._running.result()
        self._running = None
        return masks

    def _fill(self, wanted: Wanted) -> list[Mask | Exception]:
        masks: list[Mask | Exception] = []
        for row, (constraint, output_token_ids) in zip(self._rows, wanted, strict=False):
            try:
                constraint.fill_mask(row, output_token_ids)
                masks.append(row[: self._num_words])
            except Exception as error:
                masks.append(error)
        return masks
