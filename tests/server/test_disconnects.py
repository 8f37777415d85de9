"""Clients that leave or stop reading: their requests leave the engine within two steps, others see nothing of it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hotloop import AsyncLLM
from server.live import live_server, make_service, serving
from server.serving import eventually

LONG = {"prompt": "abc", "max_tokens": 1900, "ignore_eos": True}


class Steps:
    """Slow steps, and at which of them what was asked for or left."""

    def __init__(self, llm: AsyncLLM, patch: pytest.MonkeyPatch) -> None:
        client = llm._pump.client
        self.core = client._core  # type: ignore[attr-defined]
        self.asked: list[int] = []
        self.left: list[int] = []
        step, ask, leave = self.core.step, client.abort, self.core.abort
        patch.setattr(self.core, "step", lambda: (time.sleep(0.01), step())[1])
        patch.setattr(client, "abort", lambda ids: (self.asked.append(self.core.steps.num_steps), ask(ids))[1])
        patch.setattr(self.core, "abort", lambda name: (leave(name), self.left.append(self.core.steps.num_steps))[0])


@pytest.fixture
def steps(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(llm, monkeypatch)


@contextmanager
def posted(url: str, body: dict[str, Any], buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection that a request was sent on. buffer: bytes of its receive buffer."""
    host, _, port = url.removeprefix("http://").partition(":")
    data = json.dumps(body).encode()
    with socket.socket() as connection:
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.connect((host, int(port)))
        headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + headers.encode() + data)
        yield connection


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_gone_within_two_steps(url: str, llm: AsyncLLM, steps: Steps, stream: bool) -> None:
    with posted(url, {**LONG, "n": 2, "stream": stream}) as leaving:
        eventually(lambda: llm._pump.num_open == 2)
        start = steps.core.steps.num_steps
        eventually(lambda: steps.core.steps.num_steps > start + 3)
        if stream:
            assert b"200 OK" in leaving.recv(1000)
        before = steps.core.steps.num_steps
    eventually(lambda: llm._pump.num_open == 0 and not steps.core.has_work)
    assert len(steps.asked) == 1
    assert len(steps.left) == 2
    assert all(step - before <= 2 for step in steps.left)


def test_only_the_one_that_leaves_ends(url: str, llm: AsyncLLM, steps: Steps) -> None:  # known fault B83
    with httpx.Client(base_url=url) as client, posted(url, {**LONG, "stream": True}) as leaving:
        assert leaving.recv(100)
        answers: list[httpx.Response] = []
        body = {"prompt": "abc", "max_tokens": 40, "ignore_eos": True}
        other = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=body)))
        other.start()
        eventually(lambda: llm._pump.num_open == 2)
        leaving.close()
        other.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 40
    assert len(steps.left) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_while_waiting_for_a_turn(llm: AsyncLLM, steps: Steps, stream: bool) -> None:
    service = make_service(llm, capacity=1)
    with serving(service) as url, posted(url, LONG):
        eventually(lambda: service.admission.num_running == 1)
        with posted(url, {**LONG, "stream": stream}):
            eventually(lambda: service.admission.num_queued == 1)
        eventually(lambda: service.admission.num_queued == 0)
        assert (service.admission.num_running, llm._pump.num_open) == (1, 1)
    eventually(lambda: not steps.core.has_work)
    assert len(steps.left) == 1


def test_a_reader_that_stops_holds_up_nobody_and_is_dropped(llm: AsyncLLM, steps: Steps) -> None:
    """The server holds what the connection does not take; after the limit the request is over, also for the engine."""
    with live_server(llm, write_timeout_s=0.5) as url, httpx.Client(base_url=url) as client:
        body = {**LONG, "n": 14, "logprobs": 20, "stream": True}
        with posted(url, body, buffer=4096) as stopped:
            assert stopped.recv(100)
            answer = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 100, "ignore_eos": True})
            assert answer.json()["usage"]["completion_tokens"] == 100
            eventually(lambda: len(steps.left) == 14)
            eventually(lambda: 'finished_reason="abort",model_name="tiny"} 1.0' in client.get("/metrics").text)
            stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            rest = b""
            while data := stopped.recv(1 << 20):
                rest += data
            assert b"[DONE]" not in rest


def test_a_slow_reader_gets_everything_merged(llm: AsyncLLM) -> None:  # known fault B35
    """It reads only after the engine has done all of its work: many tokens come in one chunk then."""
    with live_server(llm) as url:
        body = {**LONG, "n": 4, "logprobs": 20, "stream": True, "return_token_ids": True}
        with posted(url, body, buffer=4096) as slow:
            eventually(lambda: llm._pump.num_open > 0)
            eventually(lambda: llm._pump.num_open == 0)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            with slow.makefile("rb") as file:
                lines = [line for line in file_until_done(file) if line.startswith(b"data: {")]
    chunks = [choice for line in lines for choice in json.loads(line[6:])["choices"]]
    assert max(len(choice.get("token_ids", ())) for choice in chunks) > 1
    alphabet = "".join(map(chr, range(32, 127))) * 30
    expected = alphabet[alphabet.index("d") :][:1900]
    for index in range(4):
        assert "".join(choice["text"] for choice in chunks if choice["index"] == index) == expected
        assert sum(len(choice.get("token_ids", ())) for choice in chunks if choice["index"] == index) == 1900


def file_until_done(file: Any) -> Iterator[bytes]:
    for line in file:
        yield line
        if line.startswith(b"data: [DONE]"):
            return
