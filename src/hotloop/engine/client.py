"""EngineClient: what LLM, AsyncLLM and the server know of an engine. Requests go in, token deltas come out."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import Request, RequestId, RestartReason, TokenDelta
from hotloop.telemetry.steps import StepReport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as it runs. config: with every value that was left open resolved. block_bytes: of one KV block.
    max_request_tokens: of prompt and output, that one request can have: the context, or less if the pool is smaller."""

    config: EngineConfig
    num_blocks: int
    block_bytes: int
    max_request_tokens: int
    vocab_size: int
    weight_bytes_per_step: int

    @property
    def max_model_len(self) -> int:
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    def __str__(self) -> str:
        """The resolved values in one line, for a person."""
        c = self.config
        return (
            f"max_model_len {c.max_model_len}, max_num_seqs {c.max_num_seqs}, max_num_batched_tokens "
            f"{c.max_num_batched_tokens}, KV pool {self.num_blocks * self.block_bytes / 1e6:.1f} MB = {self.num_blocks} "
            f"blocks of {c.block_size} tokens ({c.kv_dtype}, {self.block_bytes} bytes), prefix caching "
            f"{'on' if c.enable_prefix_caching else 'off'}, scheduling {c.scheduling_policy}, "
            f"speculation {c.speculation}, {c.threads} threads, {c.isa}"
        )


class EngineObserver(Protocol):
    """Sees all that an engine does, on the thread that polls it. What it raises is logged and goes no further."""

    def on_step(self, report: StepReport, deltas: Sequence[TokenDelta]) -> None:
        """A step ended, or the last requests left between two (no record and no deltas then)."""
        ...

    def on_restart(self, reason: RestartReason) -> None:
        """The engine's process died, or stalled and was killed, and a new one takes over its requests."""
        ...


class EngineClient(Protocol):
    """A transport to one EngineCore. All methods but ``poll`` may be called by any thread at any time and never wait for
    a step; ``poll`` by one thread at a time."""

    observer: EngineObserver | None

    @property
    def info(self) -> EngineInfo: ...

    def check(self, request: Request) -> None:
        """Raises InvalidRequestError or CapacityError if the engine would refuse the request."""
        ...

    def add(self, requests: Sequence[Request]) -> None:
        """Hand over requests that passed ``check``, with ids not in use; choices of one prompt belong in one call."""
        ...

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        """The requests leave before the next step; unknown ids are fine. Deltas under way may still arrive."""
        ...

    def poll(self, timeout_s: float | None = 0) -> list[TokenDelta]:
        """Deltas that arrived, possibly none. With nothing to do: waits so long for work (None: until there is some, or
        the client is closed)."""
        ...

    def close(self) -> None: ...


class InProcessClient:
    """The engine is in this process; whoever polls runs its steps.

    What others ask for meanwhile waits in an inbox until the step ends. Nobody holds the core's lock while the inbox
    fills: an abort while no step runs takes effect at once.
    """

    def __init__(self, core: EngineCore, info: EngineInfo) -> None:
        self.info = info
        self.observer: EngineObserver | None = None
        self._core = core
        self._core_lock = threading.Lock()
        self._stepping: int | None = None  # the thread that runs a step
        self._inbox: deque[Sequence[Request] | RequestId] = deque()
        self._refused: list[TokenDelta] = []
        self._work_arrived = threading.Condition()
        self._is_closed = False

    def check(self, request: Request) -> None:
        self._core.check(request)

    def add(self, requests: Sequence[Request]) -> None:
        self._refuse_within_step()
        self._inbox.append(requests)
        self._settle()
        with self._work_arrived:
            self._work_arrived.notify()

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        self._inbox.extend(request_ids)
        self._settle()

    def poll(self, timeout_s: float | None = 0) -> list[TokenDelta]:
        self._refuse_within_step()
        if timeout_s != 0 and not self._has_work():
            with self._work_arrived:
                self._work_arrived.wait_for(lambda: self._has_work() or self._is_closed, timeout_s)
        deltas: list[TokenDelta] = []
        with self._core_lock:
            self._empty_inbox()
            if self._core.has_work:
                self._stepping = threading.get_ident()
                try:
                    deltas = self._core.step()
                finally:
                    self._stepping = None
                observe(self.observer, self._core.report, deltas)
        self._settle()
        if self._refused:
            refused, self._refused = self._refused, []
            return refused + deltas
        return deltas

    def close(self) -> None:
        """End every request; a poll that waits returns."""
        self._refuse_within_step()
        with self._core_lock:
            self._inbox.clear()
            self._core.abort_all()
            observe(self.observer, self._core.report_of(), ())
        with self._work_arrived:
            self._is_closed = True
            self._work_arrived.notify_all()

    def _refuse_within_step(self) -> None:
        """A function of a request (`logits_processors`) that asks the engine that waits for it would wait for ever."""
        if self._stepping == threading.get_ident():
            raise InvalidRequestError("the engine cannot be used from within its own step; a logits processor must not call it")

    def _has_work(self) -> bool:
        return bool(self._inbox or self._refused or self._core.has_work)

    def _settle(self) -> None:
        """Do what waits in the inbox, unless a step runs: it calls this when it has let go of the core."""
        while self._inbox and self._core_lock.acquire(blocking=False):
            try:
                self._empty_inbox()
            finally:
                self._core_lock.release()

    def _empty_inbox(self) -> None:
        had_work = self._core.has_work
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                self._core.abort(item)
                continue
            try:
                self._core.add(item)
            except HotloopError as error:  # it passed `check`, so only an id in use is left
                _log.error("requests refused: %s", error)
                self._refused += [TokenDelta(request.request_id, (), (), None, str(error)) for request in item]
        if had_work and not self._core.has_work:
            observe(self.observer, self._core.report_of(), ())


def observe(observer: EngineObserver | None, report: StepReport | None, deltas: Sequence[TokenDelta]) -> None:
    """Tell the observer, whose faults are its own."""
    if observer is None or report is None:
        return
    try:
        observer.on_step(report, deltas)
    except Exception:
        _log.exception("the observer failed")
