"""StepLog: the latest steps of an engine as plain numbers. Fields are defined in schema.toml beside this file, [step]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class StepRecord(NamedTuple):
    """What one step did and where its time went. A tuple, since every step makes one."""

    start_s: float
    schedule_s: float
    build_s: float
    forward_s: float
    sample_s: float
    emit_s: float
    num_requests: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_drawn_tokens: int
    num_preempted: int
    num_draft_tokens: int
    num_accepted_tokens: int
    weight_bytes: int
    kv_bytes: int

    @property
    def overhead_s(self) -> float:
        """Seconds of the step without the model."""
        return self.schedule_s + self.build_s + self.sample_s + self.emit_s


class StepReport(NamedTuple):
    """A step and the state of the engine after it: what metrics are made of.

    record: None if there was no step: the last requests left between two. prefix_query_tokens, prefix_hit_tokens: prompt
    tokens of the requests that ran for the first time in this step, and those of them that the prefix cache had.
    """

    record: StepRecord | None
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    prefix_query_tokens: int
    prefix_hit_tokens: int


class StepLog:
    """A ring of the latest ``capacity`` records, preallocated."""

    def __init__(self, capacity: int = 4096) -> None:
        self._rows = np.zeros((capacity, len(StepRecord._fields)), np.float64)
        self.num_steps = 0  # since the engine started

    def append(self, record: StepRecord) -> None:
        self._rows[self.num_steps % len(self._rows)] = record
        self.num_steps += 1

    def latest(self, count: int | None = None) -> NDArray[np.float64]:
        """float64 [steps, fields], oldest first: the latest ``count`` steps, or all that are kept."""
        kept = min(self.num_steps, len(self._rows))
        count = kept if count is None else min(count, kept)
        steps = np.arange(self.num_steps - count, self.num_steps) % len(self._rows)
        return self._rows[steps]

    @property
    def last(self) -> StepRecord | None:
        if self.num_steps == 0:
            return None
        row = self._rows[(self.num_steps - 1) % len(self._rows)].tolist()
        whole = [int(v) for v in row[6:]]
        return StepRecord(*row[:6], *whole)
