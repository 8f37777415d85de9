"""Servers as processes of their own, started for a benchmark and ended after it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_START_S = 120.0
_STOP_S = 30.0


class ServerError(Exception):
    """A server that did not come up, or did not answer; the message has the end of what it said."""


@dataclass(frozen=True, slots=True)
class Command:
    """arguments: without the port, which is added as --port. ready_path: answers 200 once requests are welcome."""

    arguments: tuple[str, ...]
    ready_path: str
    isa: str = ""


class Server(NamedTuple):
    """One that runs."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def hotloop(model: str | Path, options: Sequence[str], isa: str = "") -> Command:
    """isa: kernel set, "" for the best."""
    return Command((sys.executable, "-m", "hotloop.cli.main", "serve", str(model), *options), "/ready", isa)


def llama_server(
    binary: Path, model: Path, threads: int, slots: int, slot_tokens: int, options: Sequence[str]
) -> Command:
    """slot_tokens: context of each of the slots."""
    size = ("-np", str(slots), "-c", str(slots * slot_tokens), "-t", str(threads), "-tb", str(threads))
    return Command((str(binary), "-m", str(model), *size, *options), "/health")


@contextmanager
def running(command: Command, log_file: str | None = None) -> Iterator[Server]:
    """The server, once it is ready; it is ended with the context. log_file: where what it says is to stay.

    Raises: ServerError.
    """
    port = _free_port()
    env = {**os.environ, **({"HOTLOOP_ISA": command.isa} if command.isa else {})}
    with tempfile.TemporaryFile() if log_file is None else open(log_file, "w+b") as log:
        arguments = [*command.arguments, "--port", str(port)]
        process = subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        server = Server(port, process)
        try:
            if not _wait_until_ready(process, server.url + command.ready_path):
                raise ServerError("the server is not ready")
            yield server
        except ServerError as error:
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
            raise ServerError(f"{' '.join(command.arguments[:4])} ...: {error}; it said: {said[-600:]}") from None
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return True
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
