"""Bodies that are too large or too slow, as ASGI sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hotloop.server import limits
from hotloop.server.limits import BodyLimit


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body and, behind it, the type of the message that follows."""
    message = await receive()
    assert not message["more_body"]
    after = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"] + after["type"].encode()})


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the application is not asked")


class Client:
    """Sends pieces of a body when it is asked for them, then stalls, leaves, or has sent all."""

    def __init__(self, pieces: Sequence[bytes], end: str = "all") -> None:
        self.num_read = 0
        self._messages = self._make(pieces, end)

    async def receive(self) -> Message:
        return await anext(self._messages)

    async def _make(self, pieces: Sequence[bytes], end: str) -> AsyncIterator[Message]:
        for number, piece in enumerate(pieces, 1):
            self.num_read += len(piece)
            yield {"type": "http.request", "body": piece, "more_body": end != "all" or number < len(pieces)}
        if end == "stall":
            await asyncio.sleep(100)
        yield {"type": "http.disconnect"}


def ask(app: Any, client: Client, headers: Sequence[tuple[bytes, bytes]], **options: Any) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/", "headers": list(headers)}
    options = {"max_bytes": 10, "timeout_s": 20, **options}
    asyncio.run(BodyLimit(app, **options)(scope, client.receive, send))
    return sent


def length(n: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", str(n).encode())]


CHUNKED = [(b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("headers", [length(10), CHUNKED])
def test_a_body_that_fits_is_seen_whole(headers: Any) -> None:
    sent = ask(echo, Client([b"01234", b"56789"]), headers)
    assert sent[1]["body"] == b"0123456789http.disconnect"


def test_no_body() -> None:
    client = Client([])
    assert ask(echo, client, [])[1]["body"] == b"http.disconnect"


def test_an_announced_body_is_refused_before_it_is_read() -> None:
    client = Client([b"x" * 11], "stall")
    order: list[int] = []

    async def receive() -> Message:
        order.append(1)
        return {"type": "http.disconnect"}

    client.receive = receive  # type: ignore[method-assign]
    sent = ask(never, client, length(11))
    assert sent[0]["status"] == 413
    assert len(order) == 1  # only to see the client off


def refusal(sent: list[Message]) -> dict[str, Any]:
    assert sum(m["type"] == "http.response.start" for m in sent) == 1
    assert (b"connection", b"close") in sent[0]["headers"]
    assert [m.get("more_body", False) for m in sent[1:]] == [True] * (len(sent) - 2) + [False]
    return json.loads(b"".join(m["body"] for m in sent[1:]))["error"]  # type: ignore[no-any-return]


def test_a_body_that_grows_too_large_is_refused_and_not_kept() -> None:
    client = Client([b"xxxx"] * 1000)
    sent = ask(never, client, CHUNKED)
    assert sent[0]["status"] == 413
    assert refusal(sent)["code"] == "request_too_large"
    assert client.num_read == 4000  # read to its end, so that the client sees the answer


def test_a_refused_client_is_not_listened_to_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LINGER_S", 0.02)
    sent = ask(never, Client([b"xxxx"] * 3, "stall"), CHUNKED)
    assert sent[0]["status"] == 413
    assert refusal(sent)


def test_a_slow_body() -> None:
    sent = ask(never, Client([b"x"], "stall"), length(10), timeout_s=0.02)
    assert sent[0]["status"] == 408
    assert refusal(sent)["code"] == "request_timeout"


def test_a_client_that_leaves_gets_no_answer() -> None:
    assert ask(never, Client([b"x"], "leave"), length(10)) == []
