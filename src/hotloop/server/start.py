"""run_server: from settings to a server that answers, and back to nothing."""

from __future__ import annotations

import gc
import ipaddress
import logging
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.engine.async_llm import AsyncLLM
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.engine.serving import start_engine_process
from hotloop.engine.time_slice import SHORT_S, set_time_slice
from hotloop.errors import HotloopError, ShutdownError
from hotloop.server.admission import Admission, engine_capacity
from hotloop.server.app import create_app
from hotloop.server.edge import guarded
from hotloop.server.health import Health
from hotloop.server.lifecycle import Lifecycle, serve
from hotloop.server.service import Service
from hotloop.server.settings import ServeSettings
from hotloop.telemetry.prometheus import Metrics

_log = logging.getLogger(__name__)

_SWITCH_S = 0.001  # so long may a thread that tokenizes keep tokens from being written; Python's own is 5 ms


def run_server(model: str | Path, engine_options: Mapping[str, Any], settings: ServeSettings) -> None:
    """Serve a model until a signal ends it. engine_options: of EngineConfig.

    Raises: HotloopError if the port is taken or the model cannot be loaded.
    """
    start_s = time.perf_counter()
    sys.setswitchinterval(_SWITCH_S)
    set_time_slice(SHORT_S)
    with bind(settings.host, settings.port) as listener:  # first: it is quick to fail
        host, port = listener.getsockname()[:2]
        if not settings.api_keys and not ipaddress.ip_address(host).is_loopback:
            _log.warning("anybody who reaches %s can use this server; give it an --api-key, or listen on 127.0.0.1", host)
        engine = start_engine_process(model, engine_options, watchdog_s=settings.watchdog_s)
        client = engine.client
        llm = AsyncLLM.over(engine)
        try:
            config = llm.config
            admission = Admission(settings, engine_capacity(config.max_num_seqs))
            metrics = Metrics(
                settings.model_names[0], config, llm.info.num_blocks, engine.ceiling_bytes_per_s,
                num_open=lambda: llm.num_open, num_queued=lambda: admission.num_queued, engine_pid=lambda: client.pid,
            )  # fmt: skip
            client.observer = metrics
            lifecycle = Lifecycle(settings.drain_timeout_s)
            health = Health(client, lambda: llm.failure, lifecycle, watchdog_s=settings.watchdog_s)
            service = Service(llm, settings, admission, metrics, health, system_fingerprint(llm.path, config))
            service.warm_up()
            app = guarded(create_app(service), settings, lifecycle, metrics.responded)

            def tell_ready() -> None:
                gc.collect()
                gc.freeze()  # what is there now stays; no later collection needs to look at it
                _log.info(
                    "ready on http://%s:%d after %.1f s: %s; %s; sampling where a request says nothing: %s; %s",
                    f"[{host}]" if ":" in host else host, port, time.perf_counter() - start_s, llm.path.name, llm.info,
                    ", ".join(f"{k} {v}" for k, v in engine.inputs.recommended.items()) or "temperature 1.0", _told(settings),
                )  # fmt: skip

            def cut(reason: str) -> None:
                admission.close(ShutdownError(reason))
                llm.shut_down(reason)

            listen(listener)
            serve(app, listener, settings, lifecycle, on_ready=tell_ready, on_cut=cut)
        finally:
            llm.close()


def _told(settings: ServeSettings) -> str:
    """The settings in one line, for a person; of the keys only how many there are."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings)} | {"api_keys": len(settings.api_keys)}
    return ", ".join(f"{name} {value}" for name, value in values.items() if name not in ("host", "port"))


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address, which nobody can connect to yet. Raises HotloopError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """From now on clients can connect. Raises HotloopError if another server at the same address, which it shared until one of
    them listened, was first; uvloop would not tell."""
    try:
        listener.listen()
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> HotloopError:
    reason = getattr(error, "strerror", None) or error
    return HotloopError(f"cannot listen on {host} port {port}: {reason}; choose another --host or --port")
