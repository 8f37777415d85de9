"""One HTTP/1.1 request on a connection of its own, as well or as badly behaved as its caller wants."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

HOST = "127.0.0.1"


def post(path: str, body: object, **headers: str) -> bytes:
    """The bytes of a request. body: sent as it is if it is bytes, else as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": HOST, "Content-Type": "application/json", "Content-Length": str(len(payload))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return _head("POST", path, fields) + payload


def get(path: str) -> bytes:
    return _head("GET", path, {"Host": HOST})


def _head(method: str, path: str, fields: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Exchange:
    """``async with Exchange(port, request) as exchange``: the status has arrived; the rest comes as it is asked for.

    buffer_bytes: what is taken from the server ahead of that, here and in the kernel; None for the usual.
    """

    def __init__(self, port: int, request: bytes, buffer_bytes: int | None = None) -> None:
        self._port = port
        self._request = request
        self._buffer_bytes = buffer_bytes
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Exchange:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        if self._buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
        await asyncio.get_running_loop().sock_connect(self._socket, (HOST, self._port))
        limit = 2**20 if self._buffer_bytes is None else self._buffer_bytes
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=limit)
        self._writer.write(self._request)
        line = await self._reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection without an answer")
        self.status = int(line.split()[1])
        while (line := await self._reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def reset(self) -> None:
        """End the connection the hard way: RST instead of FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def body(self) -> bytes:
        return b"".join([part async for part in self._parts()])

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Server-sent events as JSON; None for [DONE]."""
        rest = b""
        async for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                name, _, data = line.partition(b": ")
                if name == b"data":
                    yield None if data.strip() == b"[DONE]" else json.loads(data)

    async def _parts(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()
