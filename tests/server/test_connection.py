"""Clients that send slowly, too much, or read nothing, on real connections."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from hotloop.server.connection import Connection, Limits, affordable_connections

_PIECE = b"x" * 65536


class App:
    """Answers /endless with bytes without end, /whole with some megabytes in one piece, /silent when the client leaves, /echo
    with the body and the number of headers, other paths with a word."""

    def __init__(self) -> None:
        self.num_endless = 0
        self.is_over = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/silent":
            await self._until_gone(receive)
            self.is_over.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            leaving = asyncio.create_task(self._until_gone(receive))
            while not leaving.done():
                self.num_endless += 1
                await send({"type": "http.response.body", "body": _PIECE, "more_body": True})
                await asyncio.sleep(0)
            self.is_over.set()
        elif scope["path"] == "/echo":
            body, message = b"", await receive()
            while message.get("more_body"):
                body, message = body + message["body"], await receive()
            body += message.get("body", b"") + b" %d" % len(scope["headers"])
            await send({"type": "http.response.body", "body": body})
        else:
            body = _PIECE * 400 if scope["path"] == "/whole" else b"word"
            await send({"type": "http.response.body", "body": body})

    @staticmethod
    async def _until_gone(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@contextmanager
def serving(limits: Limits) -> Iterator[tuple[App, uvicorn.Server, int]]:
    app = App()
    config = uvicorn.Config(
        app, port=0, http=Connection.with_limits(limits), ws="none", lifespan="off", log_config=None, timeout_keep_alive=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield app, server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        assert not thread.is_alive()


def connect(port: int, *, small_window: bool = True) -> socket.socket:
    """small_window: little is on the way to a client that does not read; one that reads gets it slowly."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    if small_window:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    """The body of the next answer, a whole 200 in one piece."""
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        part = connection.recv(65536)
        assert part, answer
        answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    return answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1]


def test_a_silent_connection_is_closed() -> None:
    with serving(Limits(60, header_timeout_s=0.2)) as (_, _, port), connect(port) as connection:
        assert read_all(connection) == b""


@pytest.mark.parametrize("earlier", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["first", "second"])
def test_a_slow_head_is_refused(earlier: bytes) -> None:
    with serving(Limits(60, header_timeout_s=0.4)) as (_, _, port), connect(port) as connection:
        if earlier:
            connection.sendall(earlier)
            assert read_answer(connection)
        closed = threading.Event()

        def drip() -> None:
            for byte in b"GET /" + b"a" * 1000:
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return
                if closed.wait(0.02):
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        answer = read_all(connection)
        closed.set()
        dripping.join()
        assert b"HTTP/1.1 408 Request Timeout\r\n" in answer


def test_empty_lines_are_no_request() -> None:
    """The HTTP parser skips them without a word."""
    with serving(Limits(60, header_timeout_s=0.3)) as (_, _, port), connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_answer(connection)
        connection.sendall(b"\r\n")
        assert b"HTTP/1.1 200" not in read_all(connection)


def test_a_head_without_end_is_refused() -> None:
    with serving(Limits(60, max_header_bytes=10_000)) as (_, server, port), connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"y" * 10**8)
        assert not server.server_state.connections


def test_a_large_head_that_fits_and_a_large_body_are_fine() -> None:
    with serving(Limits(60, max_header_bytes=10_000)) as (_, _, port), connect(port) as connection:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 9000 + b"\r\ncontent-length: 300000\r\n\r\n"
        connection.sendall(head)
        connection.sendall(b"z" * 300_000)
        assert read_answer(connection)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")  # the body that nobody read is no head
        assert read_answer(connection)


def test_a_reader_that_stopped_is_dropped() -> None:
    with serving(Limits(0.3)) as (app, server, port), connect(port) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        assert app.is_over.wait(10)
        count = app.num_endless
        assert count < 1000  # bounded by the buffers of the system, not by time
        deadline = time.monotonic() + 5
        while server.server_state.connections:
            assert time.monotonic() < deadline


def test_a_slow_reader_is_not() -> None:
    with serving(Limits(0.5)) as (app, _, port), connect(port) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert connection.recv(1 << 20)
            time.sleep(0.002)
        assert not app.is_over.is_set()


def test_an_answer_that_nobody_reads_does_not_stay() -> None:
    """The application is done with it; what is left is in the connection's buffer."""
    with serving(Limits(0.3)) as (_, server, port), connect(port) as connection:
        connection.sendall(b"GET /whole HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        time.sleep(0.1)
        assert server.server_state.connections
        deadline = time.monotonic() + 10
        while server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_answers_have_a_date() -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = read_all(connection).decode()
        date = next(line for line in head.splitlines() if line.startswith("date: "))
        assert abs(parsedate_to_datetime(date[6:]).timestamp() - time.time()) < 10
        assert "server:" not in head


_OFFER = b"host: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_an_offer_to_upgrade_is_passed_over(num_pieces: int, caplog: pytest.LogCaptureFixture) -> None:
    """As Java's client and `curl --http2` make one with every first request."""
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        for _ in range(2):
            for framing, body in (
                (b"content-length: 4\r\n", b"body"), (b"transfer-encoding: chunked\r\n", b"4\r\nbody\r\n0\r\n\r\n"),
            ):  # fmt: skip
                head = b"POST /echo HTTP/1.1\r\n" + _OFFER + framing + b"\r\n"
                if num_pieces == 1:
                    connection.sendall(head + body)
                else:
                    connection.sendall(head)
                    time.sleep(0.05)
                    connection.sendall(body)
                assert read_answer(connection) == b"body 4"
            connection.sendall(b"GET / HTTP/1.1\r\n" + _OFFER + b"\r\n")
            assert read_answer(connection) == b"word"
    assert not caplog.records


def test_many_offers_at_once() -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        connection.sendall((b"GET / HTTP/1.1\r\n" + _OFFER + b"\r\n") * 400 + b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert read_all(connection).count(b"word") == 401


def test_there_are_no_tunnels() -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        connection.sendall(b"CONNECT a.example:80 HTTP/1.1\r\nhost: a.example\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400")


def test_trailers_are_no_headers() -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head + b"4\r\nbody\r\n0\r\nauthorization: y\r\n\r\n")
        assert read_answer(connection) == b"body 2"


@pytest.mark.parametrize("trailers", [b"x: y\r\n", b"x: yyyyyyyy"], ids=["many", "long"])
def test_trailers_without_end_are_refused(trailers: bytes) -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(trailers * 10**6)


def test_who_leaves_is_missed_though_more_requests_were_sent_ahead() -> None:
    with serving(Limits(60)) as (app, server, port):
        with connect(port) as connection:
            connection.sendall(b"GET /silent HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
            time.sleep(0.1)
        assert app.is_over.wait(10)
        deadline = time.monotonic() + 10
        while server.server_state.connections:
            assert time.monotonic() < deadline


def test_requests_sent_ahead_are_answered_in_order() -> None:
    with serving(Limits(60)) as (_, _, port), connect(port) as connection:
        for number in range(50):
            connection.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n%02d" % number)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = read_all(connection)
        assert [answers.index(b"%02d 2" % number) for number in range(50)] == sorted(
            answers.index(b"%02d 2" % number) for number in range(50)
        )
        assert answers.count(b"word") == 1


def test_only_so_much_is_taken_ahead() -> None:
    with serving(Limits(60)) as (app, _, port), connect(port) as connection:
        connection.sendall(b"GET /silent HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n" + b"z" * 10**7)
        assert app.is_over.wait(10)


def test_what_is_no_http_does_not_get_into_an_answer() -> None:
    with serving(Limits(60)) as (app, _, port), connect(port, small_window=False) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(1024)
        connection.sendall(b"no HTTP\r\n\r\n")
        assert b"HTTP/1.1 400" not in read_all(connection)
        assert app.is_over.wait(10)


def test_too_many_connections_are_closed() -> None:
    with serving(Limits(60, max_connections=2)) as (_, server, port):
        with connect(port) as first, connect(port) as second:
            for connection in (first, second):  # both are there
                connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert read_answer(connection) == b"word"
            with connect(port) as third:
                assert read_all(third) == b""
            first.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read_answer(first) == b"word"
        deadline = time.monotonic() + 10
        while server.server_state.connections:
            assert time.monotonic() < deadline
        with connect(port) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read_answer(connection) == b"word"


def test_connections_leave_files_for_a_new_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1000, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert affordable_connections() == 4936
    limits[:] = [(10, 10)]
    assert affordable_connections() == 1
