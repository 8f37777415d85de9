"""Before a server is there: its address, its options."""

from __future__ import annotations

import inspect
import logging
import socket
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from hotloop.cli.serve import command
from hotloop.config import EngineConfig
from hotloop.engine.time_slice import set_time_slice
from hotloop.errors import HotloopError, InvalidRequestError, ModelNotFoundError
from hotloop.server import start
from hotloop.server.settings import ServeSettings


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A server has its process for itself."""
    interval_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)
    set_time_slice(None)


def settings(**values: Any) -> ServeSettings:
    return ServeSettings(model_names=("m",), port=0, **values)


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [("127.0.0.1", (), False), ("localhost", (), False), ("0.0.0.0", (), True), ("0.0.0.0", ("k",), False)],
)
def test_an_open_server_is_warned_of(
    host: str, keys: tuple[str, ...], warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_engine(*args: Any, **options: Any) -> None:
        raise ModelNotFoundError("none")

    monkeypatch.setattr(start, "start_engine_process", no_engine)
    with caplog.at_level(logging.WARNING), pytest.raises(ModelNotFoundError):
        start.run_server("m", {}, settings(host=host, api_keys=keys))
    assert ("anybody who reaches" in caplog.text) == warns


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("drain_timeout_s", -1),
        ("body_timeout_s", 0),
        ("write_timeout_s", 0),
        ("watchdog_s", 0),
        ("watchdog_s", float("nan")),
    ],
)
def test_seconds_that_cannot_be(name: str, bad: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} is {bad!r}; it must be a number of seconds"):
        settings(**{name: bad})
    settings(drain_timeout_s=0)


def test_the_port_is_taken_before_the_model_is_loaded() -> None:
    with start.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        first.listen()
        with pytest.raises(HotloopError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            start.bind("127.0.0.1", port)
        with pytest.raises(ConnectionError), socket.create_connection(("127.0.0.1", port + 1 if port < 65535 else 1)):
            pass


def test_two_servers_that_start_at_the_same_time_do_not_both_listen() -> None:
    with start.bind("127.0.0.1", 0) as first, start.bind("127.0.0.1", first.getsockname()[1]) as second:
        start.listen(first)
        with pytest.raises(HotloopError, match="Address already in use; choose another --host or --port"):
            start.listen(second)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "203.0.113.1", ""])
def test_addresses_that_are_none(host: str) -> None:
    with pytest.raises(HotloopError, match="choose another --host or --port"):
        start.bind(host, 0)


def test_ports_that_are_none() -> None:
    for port in (-1, 65536):
        with pytest.raises(InvalidRequestError, match=f"port is {port}"):
            ServeSettings(model_names=("m",), port=port)


def test_every_setting_is_an_option_with_the_same_default() -> None:
    options = inspect.signature(command).parameters
    for field in fields(ServeSettings):
        if field.name in ("model_names", "api_keys"):  # --served-model-name, --api-key and others
            continue
        assert options[field.name].default == field.default, field.name


def test_options_of_the_engine_have_its_defaults() -> None:
    options = inspect.signature(command).parameters
    for field in fields(EngineConfig):
        if field.name in options and field.name != "isa":
            assert options[field.name].default == field.default, field.name


def test_the_line_of_readiness_has_no_keys() -> None:
    told = start._told(settings(api_keys=("sk-secret",), max_tokens_limit=7))
    assert "sk-secret" not in told
    assert "api_keys 1" in told
    assert "max_tokens_limit 7" in told
