"""A server on a port of its own, in this process, around an AsyncLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from hotloop import AsyncLLM
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.server.admission import Admission, engine_capacity
from hotloop.server.app import create_app
from hotloop.server.connection import Connection, Limits
from hotloop.server.edge import guarded
from hotloop.server.health import Health
from hotloop.server.lifecycle import Lifecycle
from hotloop.server.service import Service
from hotloop.server.settings import ServeSettings
from hotloop.telemetry.prometheus import Metrics


class IdleEngine:
    """What /health sees of an engine that is well."""

    state = "ready"
    num_live = 0
    last_progress_s = 0.0
    longest_step_s = 0.0


def make_service(llm: AsyncLLM, *, capacity: int | None = None, **settings: Any) -> Service:
    """capacity: of the engine's queue; None for what `hotloop serve` gives it."""
    serve = ServeSettings(**{"model_names": ("tiny",), **settings})
    info, client = llm.info, llm._pump.client
    admission = Admission(serve, capacity or engine_capacity(llm.config.max_num_seqs))
    client.observer = metrics = Metrics(
        serve.model_names[0], llm.config, info.num_blocks, 1e9, num_open=lambda: llm.num_open,
        num_queued=lambda: admission.num_queued,
    )  # fmt: skip
    health = Health(IdleEngine(), lambda: llm.failure, Lifecycle(serve.drain_timeout_s), watchdog_s=serve.watchdog_s)
    return Service(llm, serve, admission, metrics, health, system_fingerprint(llm.path, llm.config))


@contextmanager
def live_server(llm: AsyncLLM, **settings: Any) -> Iterator[str]:
    """The base URL of a server that runs while the context lasts."""
    with serving(make_service(llm, **settings)) as url:
        yield url


@contextmanager
def serving(service: Service) -> Iterator[str]:
    settings = service.settings
    app = guarded(create_app(service), settings, Lifecycle(settings.drain_timeout_s), service.metrics.responded)
    http = Connection.with_limits(Limits(write_timeout_s=settings.write_timeout_s))
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=http, log_level="warning", access_log=False, lifespan="off")
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
        service.llm._pump.client.observer = None  # it knows the llm: a circle
        assert not thread.is_alive(), "the server did not end"
