"""What the scheduler knows of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotloop.request import Request
from hotloop.scheduler.policies import OrderKey


@dataclass(slots=True, eq=False)
class Entry:
    """waiting: to start, or to start again. held: waits for ``parent`` to compute the prompt they share. running: has blocks.

    num_bypassed: later requests that started since this one was found not to fit. tried_at: the epoch of that finding.
    """

    request: Request
    key: OrderKey
    state: Literal["waiting", "held", "running"] = "waiting"
    parent: Entry | None = None
    children: list[Entry] = field(default_factory=list)
    num_bypassed: int = 0
    tried_at: int = -1


def key_of(entry: Entry) -> OrderKey:
    return entry.key
