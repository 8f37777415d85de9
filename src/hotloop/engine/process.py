"""EngineProcess: one run of the engine's process, seen from the client's: its sockets, its end, and killing it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import zmq

from hotloop.config import EngineConfig
from hotloop.engine.wire import COMMANDS, REPORTS, Command, Report, Start, decode_report, encode

_log = logging.getLogger(__name__)

_RECONNECT_MS = 20  # until the worker has made its sockets


class EngineProcess:
    """Starts a worker and has it load a model.

    ``send`` and ``kill`` may be called by any thread, one at a time; all else by one thread. The worker is a process group
    of its own, out of reach of the terminal's Ctrl-C, and ends with this process, whatever ends it: its standard input does.
    """

    def __init__(self, path: Path, config: EngineConfig, *, module: str) -> None:
        """module: the worker's, `hotloop.engine.worker` or a test's."""
        with contextlib.ExitStack() as resources:
            self._folder = Path(tempfile.mkdtemp(prefix="hotloop-"))  # for this user only
            resources.callback(self.forget_folder)
            self._context = zmq.Context()
            resources.callback(self._context.destroy, linger=0)
            self._commands: zmq.Socket[bytes] = self._connect(zmq.PUSH, COMMANDS)
            self._reports: zmq.Socket[bytes] = self._connect(zmq.PULL, REPORTS)
            self.send(Start(str(path), config, logging.getLogger("hotloop").getEffectiveLevel()))
            # stdout is the client's, for what it was asked to say.
            command = [sys.executable, "-m", module, str(self._folder)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
            assert self._process.stdin is not None
            resources.callback(self._process.stdin.close)  # which would end it, too
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            resources.callback(os.close, self._pidfd)
            self._resources = resources.pop_all()

    def _connect(self, kind: int, name: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(0)  # whoever adds requests bounds them
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.connect(f"ipc://{self._folder / name}")
        return socket

    def send(self, command: Command) -> None:
        """Queue it; never waits, and a worker that is dead does not matter."""
        self._commands.send(encode(command))

    def receive(self) -> Report | None:
        """What has arrived, if anything has; also after the worker's end. A worker that talks nonsense is killed."""
        try:
            return decode_report(self._reports.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        except msgspec.DecodeError:
            _log.exception("the engine's process sent what nobody understands")
            self.kill()
            return None

    @property
    def sources(self) -> tuple[zmq.Socket[bytes], int]:
        """What a `zmq.Poller` finds readable when there is something to receive or the worker has ended."""
        return self._reports, self._pidfd

    def forget_folder(self) -> None:
        """The sockets are connected, so nobody needs their files any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> str:
        """Kill it if it lives, and let go of everything. Returns how it ended, for a person."""
        self.kill()
        code = self._process.wait()
        self._resources.close()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
