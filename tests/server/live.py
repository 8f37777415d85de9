"""A server on a port of its own, in this process, around an AsyncLLM."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
import uvloop

from hotloop import AsyncLLM
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.server.app import create_app
from hotloop.server.service import Service
from hotloop.server.settings import ServeSettings
from hotloop.telemetry.prometheus import Metrics


class OpenDoor:
    """Everybody may come in at once."""

    @asynccontextmanager
    async def enter(
        self, key: str, num_requests: int, num_tokens: int, priority: int, deadline_s: float | None
    ) -> AsyncIterator[None]:
        yield


class Healthy:
    def status(self) -> tuple[int, str]:
        return 200, "no work"

    def readiness(self) -> tuple[int, str]:
        return 200, "ready"


def make_service(llm: AsyncLLM, **settings: Any) -> Service:
    info = llm.info
    metrics = Metrics("tiny", llm.config, info.num_blocks, 1e9, num_open=lambda: llm.num_open)
    llm._pump.client.observer = metrics
    return Service(
        llm, ServeSettings(**{"model_names": ("tiny",), **settings}), OpenDoor(), metrics, Healthy(),
        system_fingerprint(llm.path, llm.config),
    )  # fmt: skip


@contextmanager
def live_server(llm: AsyncLLM, **settings: Any) -> Iterator[str]:
    """The base URL of a server that runs while the context lasts."""
    with serving(make_service(llm, **settings)) as url:
        yield url


@contextmanager
def serving(service: Service) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), port=0, log_level="warning", lifespan="off", http="httptools")
    )
    thread = threading.Thread(target=lambda: uvloop.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not end"
