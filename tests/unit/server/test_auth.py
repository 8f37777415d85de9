"""API keys: where they come from, and that every path but the listed ones needs one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hotloop.errors import InvalidRequestError
from hotloop.server.auth import ApiKeys, Auth, load_api_keys
from hotloop.server.settings import ServeSettings


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["hotloop.key"].encode()})


def ask(path: str, authorization: str | None = None, *, keys: tuple[str, ...] = ("sk-1", "sk-2"), **options: Any) -> Any:
    """(status, body, headers) of an answer."""
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing of the request is read")

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Auth(echo, keys, **options)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions", "/v1/chat/completions", "/metrics", "/v1/models", "/version", "/openapi.json", "/docs", "/nowhere",
        "/", "", "/health/", "//health", "/HEALTH", "/health/../v1/models", "/v1/../health", "/ready/x", "/health ",
    ],
)  # fmt: skip
def test_closed_paths(path: str) -> None:
    status, body, headers = ask(path)
    assert status == 401
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert "Bearer" in error["message"]
    assert headers[b"www-authenticate"] == b"Bearer"
    assert ask(path, "Bearer sk-2")[:2] == (200, b"key-2")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_open_paths(path: str) -> None:
    assert ask(path)[:2] == (200, b"-")
    assert ask(path, "Bearer wrong")[:2] == (200, b"-")


def test_metrics_are_open_only_if_wanted() -> None:
    assert ask("/metrics")[0] == 401
    assert ask("/metrics", public_metrics=True)[0] == 200
    assert ask("/metrics/", public_metrics=True)[0] == 401


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "sk-1", "Basic sk-1", "Bearer sk-1x", "Bearer sk-", "Bearer SK-1", "Bearer \xff"],
)
def test_wrong_keys(authorization: str) -> None:
    assert ask("/v1/models", authorization)[0] == 401


@pytest.mark.parametrize("authorization", ["Bearer sk-1", "bearer sk-1", "BEARER  sk-1"])
def test_right_keys(authorization: str) -> None:
    assert ask("/v1/models", authorization)[:2] == (200, b"key-1")


def test_without_keys_everybody_may() -> None:
    assert ask("/v1/models", keys=())[:2] == (200, b"-")
    assert ask("/v1/models", "Bearer anything", keys=())[:2] == (200, b"-")


def test_all_keys_are_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hotloop.server.auth.hmac.compare_digest", lambda a, b: compared.append(a) or a == b)
    keys = ApiKeys(["a", "b", "c"])
    for presented in (b"a", b"c", b"x"):
        compared.clear()
        keys.name_of(presented)
        assert len(compared) == 3


def test_keys_of_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTLOOP_API_KEY", raising=False)
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n sk-file \nsk-b\n")
    assert load_api_keys([], None) == ()
    assert load_api_keys(["a", "a"], file) == ("a", "sk-file", "sk-b")
    monkeypatch.setenv("HOTLOOP_API_KEY", "sk-env")
    assert load_api_keys([], None) == ("sk-env",)
    assert load_api_keys(["a"], file) == ("a", "sk-file", "sk-b", "sk-env")


def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTLOOP_API_KEY", raising=False)
    file = tmp_path / "keys"
    for bad in ("secret word", "secretü", "secret\x07", ""):
        with pytest.raises(InvalidRequestError, match="--api-key number 2 is no API key") as caught:
            load_api_keys(["fine", bad], None)
        assert "secret" not in str(caught.value)
        file.write_text(f"fine\n{bad}x y\n")
        with pytest.raises(InvalidRequestError, match=f"line 2 of {file}"):
            load_api_keys([], file)
    monkeypatch.setenv("HOTLOOP_API_KEY", "")
    with pytest.raises(InvalidRequestError, match=r"\$HOTLOOP_API_KEY"):
        load_api_keys([], None)
    monkeypatch.delenv("HOTLOOP_API_KEY")
    file.write_text("# nothing\n")
    with pytest.raises(InvalidRequestError, match="has no API keys"):
        load_api_keys([], file)
    with pytest.raises(InvalidRequestError, match=r"cannot read .*missing: No such file or directory$"):
        load_api_keys([], tmp_path / "missing")
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match=r"no UTF-8 text$"):
        load_api_keys([], file)


def test_settings_do_not_show_keys() -> None:
    assert "sk-1" not in repr(ServeSettings(model_names=("m",), api_keys=("sk-1",)))
