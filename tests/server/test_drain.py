"""The end of a server: SIGTERM drains, a second signal does not; and what a server that has nothing to do does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.serving import DONE, Event, ServerProcess, finish_reasons, metric, streaming, text_of

COMPLETIONS = "/v1/completions"
ENDLESS = 90_000


def body(max_tokens: int) -> dict[str, Any]:
    return {"prompt": "abc", "max_tokens": max_tokens, "temperature": 0}


class Reader:
    """A stream on a thread. begun: its first event is there."""

    def __init__(self, client: httpx.Client, threads: ThreadPoolExecutor, max_tokens: int) -> None:
        self.begun = threading.Event()
        self._result: Future[list[Event]] = threads.submit(self._read, client, max_tokens)

    def _read(self, client: httpx.Client, max_tokens: int) -> list[Event]:
        events = []
        with streaming(client, COMPLETIONS, body(max_tokens)) as parts:
            for event in parts:
                events.append(event)
                self.begun.set()
        return events

    @property
    def events(self) -> list[Event]:
        return self._result.result(60)

    @property
    def error(self) -> str:
        """What kept it from beginning."""
        return str(self._result.exception(60))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def start(client: httpx.Client, threads: ThreadPoolExecutor, count: int, max_tokens: int) -> Sequence[Reader]:
    """Streams that have all begun."""
    readers = [Reader(client, threads, max_tokens) for _ in range(count)]
    assert all(reader.begun.wait(30) for reader in readers)
    return readers


def wait_until_draining(client: httpx.Client) -> None:
    deadline = time.monotonic() + 10
    while "draining" not in client.get("/ready").text:
        assert time.monotonic() < deadline


def test_a_drain_lets_everything_end_and_takes_nothing_new(
    home: Path, scripted_path: Path, threads: ThreadPoolExecutor
) -> None:
    # known fault B79
    with ServerProcess(scripted_path, "--max-num-seqs", "2", home=home) as server, server.client() as client:
        running = start(client, threads, 2, 3000)
        more = [Reader(client, threads, 50) for _ in range(4)]  # these wait for the engine, some of them in the server
        time.sleep(0.2)
        engine = server.engine_pid()
        for pid in (engine, server.process.pid):  # as systemd does with all processes of a service
            os.kill(pid, signal.SIGTERM)
        wait_until_draining(client)
        assert server.engine_pid() == engine
        refused = client.post(COMPLETIONS, json=body(1))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 200
        for reader, num_tokens in [*((r, 3000) for r in running), *((r, 50) for r in more)]:
            assert reader.events[-1] is DONE
            assert finish_reasons(reader.events[:-1]) == ["length"]
            assert len(text_of(reader.events[:-1])) == num_tokens
        assert server.wait() == 0
    assert "Traceback" not in server.log.read_text()


def test_streams_that_take_too_long_end_with_an_error_event(
    home: Path, scripted_path: Path, threads: ThreadPoolExecutor
) -> None:  # known faults B79, B134
    limits = ["--max-num-seqs", "2", "--drain-timeout-s", "0"]
    with ServerProcess(scripted_path, *limits, home=home) as server, server.client() as client:
        running = start(client, threads, 2, ENDLESS)
        waiting = [Reader(client, threads, ENDLESS) for _ in range(3)]  # one in the engine, the others in the server
        whole = threads.submit(client.post, COMPLETIONS, json=body(ENDLESS))
        deadline = time.monotonic() + 20
        while metric(client, "hotloop:num_requests_queued") < 3:
            assert time.monotonic() < deadline
        server.process.send_signal(signal.SIGTERM)
        for reader in running:
            *_, error, done = reader.events
            assert done is DONE
            assert error["error"]["code"] == "shutting_down"
            assert finish_reasons(reader.events[:-2]) == []
        for reader in waiting:
            assert "503" in reader.error
            assert "shutting_down" in reader.error
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "shutting_down"
        assert server.wait() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(
    home: Path, scripted_path: Path, threads: ThreadPoolExecutor, number: signal.Signals
) -> None:  # known fault B79
    with ServerProcess(scripted_path, home=home) as server, server.client() as client:
        (reader,) = start(client, threads, 1, ENDLESS)
        engine = server.engine_pid()
        server.process.send_signal(number)
        wait_until_draining(client)
        server.process.send_signal(number)
        assert server.wait(10) == 128 + number
        assert reader.error
        deadline = time.monotonic() + 10
        while Path(f"/proc/{engine}").exists() and "Z" not in Path(f"/proc/{engine}/stat").read_text():
            assert time.monotonic() < deadline, "the engine's process lives on"
            time.sleep(0.05)


def test_an_idle_server_ends_at_once_whatever_connections_are_open(home: Path, scripted_path: Path) -> None:
    with ServerProcess(scripted_path, home=home) as server, server.client() as client:
        assert client.get("/health").status_code == 200  # its connection stays open
        with socket.create_connection(("127.0.0.1", server.port)):  # says nothing
            server.process.send_signal(signal.SIGTERM)
            assert server.wait(5) == 0


def test_an_idle_server_does_nothing(home: Path, scripted_path: Path) -> None:
    with ServerProcess(scripted_path, home=home) as server, server.client(headers={"connection": "close"}) as client:
        client.post(COMPLETIONS, json=body(5))
        time.sleep(1.0)  # what the last request left behind
        pids = [server.process.pid, server.engine_pid()]
        before = [_switches(pid) for pid in pids]
        time.sleep(1.5)
        assert [_switches(pid) - count for pid, count in zip(pids, before, strict=True)] == [0, 0]


def _switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far."""
    files = Path(f"/proc/{pid}/task").glob("*/status")
    lines = [line for file in files for line in file.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def serve(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`hotloop serve` that is to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "hotloop.cli.main", "serve", *args],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HOTLOOP_HOME": str(home)},
    )  # fmt: skip


def test_what_keeps_a_server_from_starting_is_said_in_a_sentence(home: Path, scripted_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve(home, str(scripted_path), "--port", str(port))
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
        assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in result.stderr
    for args, part in (
        ([str(scripted_path), "--api-key", ""], "--api-key number 1 is no API key"),
        ([str(scripted_path), "--port", "0", "--max-num-seqs", "0"], "max_num_seqs is 0"),
    ):
        result = serve(home, *args)
        assert result.returncode == 1
        assert part in result.stderr
        assert "Traceback" not in result.stderr
