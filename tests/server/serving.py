"""`hotloop serve` as a process of its own, and what the tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

import hotloop

_START_S = 60.0
Event = dict[str, Any]
DONE: Event = {"done": True}  # stands for the line `data: [DONE]`


class ServerProcess:
    """`hotloop serve MODEL` with more arguments, on a free port; ready when it is entered, gone when it is left."""

    def __init__(self, model: str | Path, *args: str, home: Path, env: Mapping[str, str] | None = None) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / f"serve-{self.port}.log"
        source = str(Path(hotloop.__file__).parents[1])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hotloop.cli.main", "serve", str(model), "--port", str(self.port), *args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HOTLOOP_HOME": str(home), "PYTHONPATH": source, **(env or {})},
            )

    def __enter__(self) -> ServerProcess:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"the server did not get ready:\n{self.log.read_text()}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGINT):  # the second one: at once; of two alike one might be lost
                self.process.send_signal(number)
        self.wait()

    def wait(self, timeout_s: float = 30) -> int:
        """The exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the server did not end:\n{self.log.read_text()}") from None

    def engine_pid(self) -> int:
        """Of its engine process, the only child that holds the model."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        (engine,) = [pid for pid in pids if b"hotloop.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return engine

    def client(self, *, timeout_s: float = 60, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout_s, **options)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def streaming(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[Event]]:
    """The events of a streamed answer as they come."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            response.read()
            raise AssertionError(f"{response.status_code}: {response.text}")
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response.iter_lines())


def stream(client: httpx.Client, path: str, body: Mapping[str, Any]) -> list[Event]:
    """All events of a streamed answer, the last of which is DONE."""
    with streaming(client, path, body) as events:
        all_events = list(events)
    assert all_events[-1] is DONE
    assert DONE not in all_events[:-1]
    return all_events[:-1]


def _events(lines: Iterator[str]) -> Iterator[Event]:
    for line in lines:
        if line.startswith(":") or not line:
            continue
        name, _, data = line.partition(": ")
        assert name == "data", line
        yield DONE if data == "[DONE]" else strict_json(data)


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def choices(events: Sequence[Event], index: int = 0) -> list[Event]:
    """What the chunks say of one choice."""
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


def text_of(events: Sequence[Event], index: int = 0) -> str:
    """The text of one choice, of a chat or a completion."""
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices(events, index))


def finish_reasons(events: Sequence[Event], index: int = 0) -> list[str]:
    return [choice["finish_reason"] for choice in choices(events, index) if choice["finish_reason"] is not None]


def metric(client: httpx.Client, name: str) -> float:
    """The sum of a metric's samples over its labels."""
    text = client.get("/metrics").text
    samples = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    assert samples, f"no metric {name}"
    return sum(float(line.rpartition(" ")[2]) for line in samples)


def eventually(holds: Callable[[], bool], what: str = "what was waited for", timeout_s: float = 60) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
