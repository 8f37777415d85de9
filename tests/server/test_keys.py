"""Without a key nothing is told and nothing runs, whatever the path is called (known fault B84)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.serving import ServerProcess

KEY = "sk-of-this-test"
OPEN = {"/health", "/ready"}
BODY = {"prompt": "abc", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def guarded(home: Path, scripted_path: Path) -> Iterator[ServerProcess]:
    keys = home / "keys"
    keys.write_text(f"# of the tests\n\n{KEY}-file\n")
    options = ["--api-key", KEY, "--api-key", f"{KEY}-2", "--api-key-file", str(keys)]
    with ServerProcess(scripted_path, *options, home=home, env={"HOTLOOP_API_KEY": f"{KEY}-environment"}) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def assert_unauthorized(response: httpx.Response) -> None:
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_every_route_but_the_open_ones_needs_a_key(guarded: ServerProcess) -> None:
    with guarded.client() as client:
        paths = client.get("/openapi.json", headers=bearer(KEY)).json()["paths"]
        assert {"/v1/completions", "/tokenize", "/metrics", "/openapi.json"} <= paths.keys()
        for path in paths:
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
                response = client.request(method, path.replace("{model}", "scripted"), json=BODY)
                if path in OPEN:
                    assert response.status_code != 401
                elif method == "HEAD":
                    assert response.status_code == 401
                else:
                    assert_unauthorized(response)


@pytest.mark.parametrize(
    "path",
    [
        "/v1//completions", "//v1/completions", "/V1/completions", "/v1/completions/", "/v1/../v1/completions", "/nothing", "/",
        "/health/", "/health/../v1/completions", "/health/..%2fv1/completions", "/health%2f..%2fv1%2fcompletions", "/HEALTH",
        "//health", "/health;x=1", "/v1/completions?api_key=x", "/docs", "/redoc", "/reset_prefix_cache", "/ready%00",
    ],
)  # fmt: skip
def test_other_spellings(guarded: ServerProcess, path: str) -> None:
    """Sent as they are: a client library would tidy them up."""
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=20) as connection:
        body = b'{"prompt": "abc"}'
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "headers",
    [
        bearer("wrong"), bearer(KEY[:-1]), bearer(KEY + "x"), bearer(KEY.upper()), bearer("# of the tests"),
        {"authorization": "Bearer"}, {"authorization": KEY}, {"authorization": f"Basic {KEY}"}, {"api-key": KEY},
        {"cookie": KEY},
    ],
)  # fmt: skip
def test_wrong_keys(guarded: ServerProcess, headers: dict[str, str]) -> None:
    with guarded.client() as client:
        assert_unauthorized(client.post("/v1/completions", json=BODY, headers=headers))


def test_right_keys(guarded: ServerProcess) -> None:
    with guarded.client() as client:
        for key in (KEY, f"{KEY}-2", f"{KEY}-file", f"{KEY}-environment"):
            for scheme in ("Bearer", "bearer"):
                response = client.get("/v1/models", headers={"authorization": f"{scheme} {key}"})
                assert response.status_code == 200


def test_a_large_body_without_a_key_is_not_read(guarded: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_the_log_has_no_keys_and_no_prompts(guarded: ServerProcess) -> None:
    with guarded.client() as client:
        response = client.post("/v1/completions", json={"prompt": "a secret text", "max_tokens": 3}, headers=bearer(KEY))
        assert response.status_code == 200
        client.get("/v1/models?key=of-the-query", headers=bearer("a-wrong-key"))
        client.get("/v1/models", headers=bearer(KEY))
    log = guarded.log.read_text()
    assert "key-1" in log
    for secret in (KEY, "secret text", "a-wrong-key", "of-the-query"):
        assert secret not in log
