"""SupervisedClient: an EngineClient whose engine runs in a process of its own and may die or stall at any moment."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import zmq

from hotloop.config import EngineConfig
from hotloop.engine.checks import check_request
from hotloop.engine.client import EngineInfo, EngineObserver, observe
from hotloop.engine.journal import Journal
from hotloop.engine.process import EngineProcess
from hotloop.engine.starts import PATIENCE, LongestStep, Starts
from hotloop.engine.wire import Abort, Add, Logged, Ready, Refused, Report, StartFailed, StepDone
from hotloop.errors import EngineDeadError, HotloopError
from hotloop.request import ErrorKind, Request, RequestId, RestartReason, TokenDelta
from hotloop.telemetry.steps import StepReport
from hotloop.weights.identity import model_identity

EngineState = Literal["starting", "ready", "restarting", "failed", "closed"]

_log = logging.getLogger(__name__)


class SupervisedClient:
    """Requests go on where they were when the engine's process ends or completes no step any more: a new process, of the same
    resolved configuration, gets all of them as resumed requests. Output is a pure function, so nobody sees a difference.

    All of that happens in ``poll``: there is no other thread, and without requests it only waits.

    last_progress_s: time.perf_counter of the last completed step, or of the first request after a time without any.
    num_restarts: how many engines ended after they were ready.
    """

    def __init__(
        self, path: Path, config: EngineConfig, *, watchdog_s: float, module: str = "hotloop.engine.worker"
    ) -> None:
        """Starts the engine; ``wait_until_ready`` comes next. module: that its process runs; tests have their own.

        Raises: HotloopError if the system lets no process start.
        """
        self.observer: EngineObserver | None = None
        self.state: EngineState = "starting"
        self.last_progress_s = time.perf_counter()
        self._longest_step = LongestStep()
        self.num_restarts = 0
        self._path = path
        self._identity = model_identity(path)
        self._config = config
        self._watchdog_s = watchdog_s
        self._module = module
        self._info: EngineInfo | None = None
        self._polling = threading.Lock()
        self._lock = threading.RLock()  # of what follows, but for what only the polling thread uses
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._journal = Journal()
        self._outbox: list[TokenDelta] = []  # errors that come from no engine
        self._observed: list[tuple[StepReport, list[TokenDelta]]] = []
        self._start_error: HotloopError | None = None  # what the process that starts has said
        self._has_stepped = False  # the process there is
        self._starts = Starts(watchdog_s, self.last_progress_s)
        self._poller = self._poller_of(())
        try:
            self._process: EngineProcess | None = self._new_process()
        except (OSError, zmq.ZMQError) as error:
            os.close(self._wake_fd)
            raise HotloopError(f"no process could be started for the engine: {error}") from error

    # ---- EngineClient -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "wait_until_ready comes first"
        return self._info

    def check(self, request: Request) -> None:
        if self.state == "failed":
            raise EngineDeadError("the engine does not start any more; the server's log tells why")
        check_request(request, self.info)

    def add(self, requests: Sequence[Request]) -> None:
        with self._lock:
            self._journal.add(requests)
            if self.state == "failed":
                self._fail_all()
            self._hand_out()
        self._wake()

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        with self._lock:
            in_engine = self._journal.drop(request_ids)
            if in_engine and self._process is not None:
                self._process.send(Abort(in_engine))
            self._hand_out()

    def poll(self, timeout_s: float | None = 0) -> list[TokenDelta]:
        end_s = math.inf if timeout_s is None else time.perf_counter() + timeout_s
        try:
            with self._polling:
                while True:
                    deltas = self._advance()
                    if deltas or self.state == "closed" or time.perf_counter() >= end_s:
                        return deltas
                    self._wait(end_s)
        finally:
            self._let_go()

    def close(self) -> None:
        """End every request and the process; a poll that waits returns."""
        with self._lock:
            self.state = "closed"
            self._journal.clear()
            if self._process is not None:
                self._process.kill()
        self._wake()
        self._let_go()

    # ---- for health and tests ---------------------------------------------------------------------------------------

    @property
    def longest_step_s(self) -> float:
        """Lately, of all engines."""
        return self._longest_step.longest_s

    @property
    def num_live(self) -> int:
        return len(self._journal)

    @property
    def pid(self) -> int | None:
        """Of the engine's process, if there is one just now."""
        process = self._process
        return None if process is None else process.pid

    def wait_until_ready(self) -> None:
        """Raises what kept the engine from loading; the client is closed then."""
        with self._polling:
            while self.state == "starting":
                self._advance()
                if self.state == "starting":
                    self._wait(math.inf)
        if self.state == "failed":
            self.close()
            raise self._start_error or EngineDeadError("the engine's process ended before the model was loaded")

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, end_s: float) -> None:
        """Until something arrives, or there is something to do, or ``end_s``."""
        alarm_s = min(end_s, self._alarm_s())
        left_s = alarm_s - time.perf_counter()
        self._poller.poll(None if alarm_s == math.inf else max(0, math.ceil(left_s * 1e3)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _poller_of(self, sources: Sequence[zmq.Socket[bytes] | int]) -> zmq.Poller:
        """Of the wake-up and these."""
        poller = zmq.Poller()
        for source in (self._wake_fd, *sources):
            poller.register(source, zmq.POLLIN)
        return poller

    def _alarm_s(self) -> float:
        """When there is something to do though nothing arrives: patience ends, or a deadline passes, or a start is due."""
        with self._lock:
            if self._outbox:
                return 0.0
            return min(
                self._journal.next_deadline_s, self._starts.at_s if self._process is None else self._patience_ends_s
            )

    @property
    def _patience_ends_s(self) -> float:
        if self.state != "ready":
            return self._starts.limit_s
        if not self._journal.num_handed_out:
            return math.inf
        return self.last_progress_s + max(self._watchdog_s, PATIENCE * self.longest_step_s)

    def _wake(self) -> None:
        """A poll that waits looks again."""
        with self._lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _let_go(self) -> None:
        """Once closed and nobody polls, nothing is left open."""
        if self.state != "closed" or not self._polling.acquire(blocking=False):
            return
        try:
            with self._lock:
                if self._process is not None:
                    self._process.close()
                    self._process = None
                if self._wake_fd >= 0:
                    os.close(self._wake_fd)
                    self._wake_fd = -1
        finally:
            self._polling.release()

    # ---- what has happened ------------------------------------------------------------------------------------------

    def _advance(self) -> list[TokenDelta]:
        """Do all that there is to do now; returns what there is to hand out."""
        end: RestartReason | None = None
        with self._lock:
            if self.state == "closed":
                return []
            process, now_s = self._process, time.perf_counter()
            if process is None:
                if now_s >= self._starts.at_s:
                    self._restart(now_s)
            elif not self._receive(process):
                if process.has_ended:
                    end = "died"
                elif now_s >= self._patience_ends_s:
                    end = "stalled"
            self._error(self._journal.take_expired(now_s), "the request's deadline passed", "deadline")
            deltas, self._outbox = self._outbox, []
            observed, self._observed = self._observed, []
        for report, its_deltas in observed:
            observe(self.observer, report, its_deltas)
            deltas += its_deltas
        if process is not None and end is not None:
            self._engine_ended(process, end)
        return deltas

    def _receive(self, process: EngineProcess) -> bool:
        """Take all that has arrived. Whether there was anything."""
        report = process.receive()
        if report is None:
            return False
        while report is not None:
            self._take(report, process)
            report = process.receive()
        return True

    def _take(self, report: Report, process: EngineProcess) -> None:
        if isinstance(report, StepDone):
            record = report.report.record
            self._observed.append((report.report, self._journal.take(report.deltas)))
            if record is not None:
                self.last_progress_s = time.perf_counter()
                self._longest_step.add(record.overhead_s + record.forward_s, self.last_progress_s)
                self._has_stepped = True
                self._starts.stepped()
            self._hand_out()
        elif isinstance(report, Refused):
            _log.error("the engine refused requests: %s", report.message)
            self._journal.drop(report.request_ids)
            self._error(report.request_ids, report.message, "internal")
        elif isinstance(report, Logged):
            logging.getLogger(report.logger).log(report.level, "%s", report.text)
        elif isinstance(report, StartFailed):
            self._start_error = report.error
        elif isinstance(report, Ready):
            self._ready(report.info, process)

    def _ready(self, info: EngineInfo, process: EngineProcess) -> None:
        start_s = self._starts.loaded(time.perf_counter())
        if self.state != "starting":
            _log.warning("the engine is back after %.1f s and goes on with %d requests", start_s, len(self._journal))
        process.forget_folder()
        self._info, self._config = info, info.config  # nothing left open: the next one is the same
        self.state = "ready"
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the engine what it may have now."""
        if self.state != "ready" or self._process is None:
            return
        now_s = time.perf_counter()
        if not self._journal.num_handed_out:
            self.last_progress_s = now_s
        requests = self._journal.hand_out(now_s)
        for _, choices in groupby(requests, key=lambda request: request.parent_id or request.request_id):
            self._process.send(Add(list(choices)))

    # ---- ends and starts --------------------------------------------------------------------------------------------

    def _engine_ended(self, process: EngineProcess, reason: RestartReason) -> None:
        with self._lock:
            self._process = None
            self._poller = self._poller_of(())
        stalled = "completed no step in time and " if reason == "stalled" else ""
        message = f"the engine's process {stalled}{process.close()}"  # its memory takes a while to go: without the lock
        with self._lock:
            if self.state == "closed":
                return
            was_ready = self.state == "ready"
            if was_ready and (self._has_stepped or self._journal.num_handed_out):
                self._starts.at_s = time.perf_counter()
                self.state = "restarting"
            else:
                self._start_failed()
            if not was_ready:
                _log.error("%s before the model was loaded: %s", message, self._start_error or "nobody knows why")
                return
            _log.error("%s; %d requests wait for a new one", message, len(self._journal))
            self.num_restarts += 1
            self._error(
                self._journal.engine_ended(), "the request ended the engine's process, again and again", "engine_dead"
            )
        if self.observer is not None:
            try:
                self.observer.on_restart(reason)
            except Exception:
                _log.exception("the observer failed")

    def _restart(self, now_s: float) -> None:
        self._starts.at_s = now_s
        if model_identity(self._path) != self._identity:
            _log.error("%s is not the model any more that answers were begun with; restart the server", self._path)
            self._start_failed()
            return
        try:
            self._process = self._new_process()
        except (OSError, zmq.ZMQError):
            _log.exception("no process could be started for the engine")
            self._start_failed()

    def _start_failed(self) -> None:
        if self._info is None:  # the first one: `wait_until_ready` tells
            self.state = "failed"
        elif self._starts.failed(time.perf_counter()):
            self.state = "restarting"
        else:
            self.state = "failed"
            self._fail_all()

    def _new_process(self) -> EngineProcess:
        self._has_stepped = False
        self._start_error = None
        process = EngineProcess(self._path, self._config, module=self._module)
        self._poller = self._poller_of(process.sources)
        return process

    def _fail_all(self) -> None:
        self._error(self._journal.clear(), "the engine's process ended and no new one starts", "engine_dead")

    def _error(self, request_ids: Iterable[RequestId], message: str, kind: ErrorKind) -> None:
        self._outbox += [TokenDelta(i, (), (), None, message, None, kind) for i in request_ids]
