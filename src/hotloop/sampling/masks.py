"""MaskWorker: computes the masks of a step on a thread of its own, while the model runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from hotloop.sampling.grammar import Constraint, Mask


class MaskWorker:
    """``start`` before the forward pass, ``finish`` after it. The thread starts with the first mask."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._rows: NDArray[np.uint32] = np.empty((0, vocab_size // 32 + 1), np.uint32)  # room for the tokenizer's end token
        self._thread: ThreadPoolExecutor | None = None
        self._pid = 0
        self._running: Future[list[Mask | Exception]] | None = None

    def start(self, wanted: Sequence[tuple[Constraint, Sequence[int]]]) -> None:
        """Compute the masks of constraints after their output ids, which must not change until ``finish``."""
        if self._thread is None or self._pid != os.getpid():  # threads stay behind in a fork
            self._thread, self._pid, self._running = ThreadPoolExecutor(1, "hotloop-masks"), os.getpid(), None
        if self._running is not None:  # of a step that was interrupted
            wait([self._running])
        if len(wanted) > len(self._rows):
            self._rows = np.empty((len(wanted), self._rows.shape[1]), np.uint32)
        self._running = self._thread.submit(self._fill, wanted)

    def finish(self) -> list[Mask | Exception]:
        """uint32 [ceil(vocab_size / 32)] each, valid until the next ``start``; or what went wrong with that row."""
        assert self._running is not None
        masks = self._running.result()
        self._running = None
        return masks

    def _fill(self, wanted: Sequence[tuple[Constraint, Sequence[int]]]) -> list[Mask | Exception]:
        masks: list[Mask | Exception] = []
        for row, (constraint, output_token_ids) in zip(self._rows, wanted, strict=False):
            try:
                constraint.fill_mask(row, output_token_ids)
                masks.append(row[: self._num_words])
            except Exception as error:
                masks.append(error)
        return masks
