"""The engine's process: ``python -m hotloop.engine.worker FOLDER``. Started by `process.EngineProcess` and by nobody else."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import zmq

from hotloop import _native
from hotloop.engine.build import build_core
from hotloop.engine.core import EngineCore
from hotloop.engine.logged_progress import LoggedProgress
from hotloop.engine.time_slice import SHORT_S, set_time_slice
from hotloop.engine.wire import (
    COMMANDS,
    REPORTS,
    Abort,
    Add,
    Command,
    Logged,
    Ready,
    Refused,
    Report,
    Start,
    StartFailed,
    StepDone,
    decode_command,
    encode,
)
from hotloop.errors import HotloopError
from hotloop.weights.quantized_model import open_quantized


class Sockets:
    """The worker's end of the two sockets. Only its main thread uses them."""

    def __init__(self, folder: Path) -> None:
        context = zmq.Context()
        self._commands: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self._reports: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        for socket, name in ((self._commands, COMMANDS), (self._reports, REPORTS)):
            socket.set_hwm(0)
            socket.bind(f"ipc://{folder / name}")
        self._context = context

    def receive(self) -> Command:
        """The next command; waits for one."""
        return decode_command(self._commands.recv())

    @property
    def has_command(self) -> bool:
        events = self._commands.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & zmq.POLLIN)

    def send(self, report: Report) -> None:
        self._reports.send(encode(report))

    def flush(self) -> None:
        """Close, and wait until all is sent."""
        self._context.destroy()


class _LogSender(logging.Handler):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def emit(self, record: logging.LogRecord) -> None:
        self._sockets.send(Logged(record.levelno, record.name, self.format(record)))


def main() -> None:
    folder = Path(sys.argv[1])
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # who ends a service signals all of its processes; the server still drains
    threading.Thread(target=_end_with_the_client, args=(folder,), daemon=True).start()
    set_time_slice(SHORT_S)
    sockets = Sockets(folder)  # and ZeroMQ's threads
    set_time_slice(None)
    start = sockets.receive()
    assert isinstance(start, Start)
    logging.basicConfig(level=start.log_level, handlers=[_LogSender(sockets)], format="%(message)s")
    try:
        with open_quantized(
            Path(start.path), start.config.quantize, threads=start.config.num_threads, progress=LoggedProgress()
        ) as model_file:
            built = build_core(model_file, start.config)
    except Exception as error:
        if not isinstance(error, HotloopError):
            logging.getLogger(__name__).exception("the engine could not be loaded")
        sockets.send(StartFailed(type(error).__name__, str(error)))
        sockets.flush()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # what lives as long as the process is no work for later collections
    _native.release_free_memory()
    sockets.send(Ready(built.info))
    sockets.send(StepDone(built.core.report_of(), []))
    run(built.core, sockets)


def run(core: EngineCore, sockets: Sockets) -> None:
    """Step while there is work, and do what is asked between steps; wait for it when there is no work. For ever."""
    while True:
        while not core.has_work or sockets.has_command:
            had_work = core.has_work
            _obey(sockets.receive(), core, sockets)
            if had_work and not core.has_work:
                sockets.send(StepDone(core.report_of(), []))
        deltas = core.step()
        assert core.report is not None
        sockets.send(StepDone(core.report, deltas))


def _obey(command: Command, core: EngineCore, sockets: Sockets) -> None:
    if isinstance(command, Add):
        try:
            core.add(command.requests)
        except HotloopError as error:
            sockets.send(Refused([request.request_id for request in command.requests], str(error)))
    elif isinstance(command, Abort):
        for request_id in command.request_ids:
            core.abort(request_id)


def _end_with_the_client(folder: Path) -> None:
    """The client's process holds the other end of standard input and writes nothing: it ends when that process does."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
