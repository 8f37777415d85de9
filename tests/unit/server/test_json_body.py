"""Which bodies are understood off the event loop: those that are long, or whose answer gets a form that has to be compiled."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from hotloop.server.fields import FIELDS
from hotloop.server.json_body import understood


def is_off_the_loop(body: bytes) -> bool:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def run() -> bool:
        request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
        with ThreadPoolExecutor(1) as threads:
            return await understood(request, threads, lambda value: threading.current_thread() is not threading.main_thread())

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["response_format", "structured_outputs", "tools"])
def test_what_gives_a_form_is_compiled_off_the_loop(name: str) -> None:
    assert name in {field.name for field in FIELDS}
    for written in (name, name.replace("o", "\\u006f", 1), name.replace("s", "\\u0073")):
        assert is_off_the_loop(b'{"messages": [], "%s" : [1]}' % written.encode())


def test_short_and_long_bodies() -> None:
    assert not is_off_the_loop(b'{"messages": [{"role": "user", "content": "my tools"}], "tool_choice": null}')
    assert is_off_the_loop(b'{"prompt": "%s"}' % (b"x" * 5000))
