"""Every route behind its layers: keys, bodies that are too large, and what the log says and does not say."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from hotloop import AsyncLLM
from hotloop.server.app import create_app
from hotloop.server.edge import guarded
from hotloop.server.lifecycle import Lifecycle
from hotloop.server.logs import HumanFormatter, JsonFormatter
from server.live import live_server, make_service
from tiny_models import write_tiny_model

KEY = {"authorization": "Bearer sk-secret"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    model = write_tiny_model(tmp_path_factory.mktemp("edge") / "tiny.gguf", "llama", formats="Q8_0", context_length=400)
    llm = AsyncLLM(model)
    yield llm
    llm.close()


class Edge:
    """The application behind its layers, without a network. statuses: of all answers, as metrics are told."""

    def __init__(self, llm: AsyncLLM, **settings: Any) -> None:
        service = make_service(llm, **settings)
        self.app = create_app(service)
        self.lifecycle = Lifecycle(5.0)
        self.statuses: list[int] = []
        self._guarded = guarded(self.app, service.settings, self.lifecycle, self.statuses.append)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._guarded)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())


def test_every_route_needs_a_key_but_two(llm: AsyncLLM) -> None:
    edge = Edge(llm, api_keys=("sk-secret",))
    paths = [route.path for route in edge.app.routes if isinstance(route, Route)]
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/metrics", "/health", "/ready"} <= set(paths)
    for path in [*paths, "/v1/embeddings", "/nowhere", "//v1/completions", "/V1/completions", "/v1/completions/"]:
        for method in METHODS:
            status = edge.ask(method, path.replace("{model:path}", "tiny")).status_code
            if path in ("/health", "/ready"):
                assert status == (200 if method in ("GET", "HEAD") else 405), (method, path)
            else:
                assert status == 401, (method, path)
    assert set(edge.statuses) == {200, 401, 405}
    assert edge.ask("GET", "/v1/models", headers=KEY).status_code == 200


def test_metrics_may_be_public(llm: AsyncLLM) -> None:
    edge = Edge(llm, api_keys=("sk-secret",), public_metrics=True)
    assert edge.ask("GET", "/metrics").status_code == 200
    assert edge.ask("GET", "/v1/models").status_code == 401


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/nowhere"])
def test_a_body_that_is_too_large(llm: AsyncLLM, path: str) -> None:
    edge = Edge(llm, max_body_bytes=1000)
    answer = edge.ask("POST", path, json={"prompt": "x" * 2000})
    assert answer.status_code == 413
    assert "1000 bytes" in answer.json()["error"]["message"]


def test_while_it_drains(llm: AsyncLLM) -> None:
    edge = Edge(llm)
    edge.lifecycle.drain()
    answer = edge.ask("POST", "/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 7
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/version"):
        assert edge.ask("GET", path).status_code == 200, path
    assert edge.lifecycle.num_answering == 0


class Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[JsonFormatter, HumanFormatter])
def lines(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """All that is logged."""
    handler, root, own = Lines(request.param()), logging.getLogger(), logging.getLogger("hotloop")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    yield handler.lines
    own.setLevel(level)
    root.removeHandler(handler)


def test_a_line_per_request_without_its_prompt(llm: AsyncLLM, lines: list[str]) -> None:
    edge = Edge(llm, api_keys=("sk-other", "sk-secret"))
    prompt = "confidential"
    body = {"prompt": prompt, "max_tokens": 12, "n": 2, "seed": 0, "ignore_eos": True}
    answer = edge.ask("POST", "/v1/completions", json=body, headers=KEY | {"x-request-id": "mine-1"})
    assert answer.status_code == 200
    edge.ask("POST", "/v1/completions", json={**body, "stream": True}, headers=KEY)
    edge.ask("POST", "/v1/completions", json={**body, "temperature": prompt}, headers=KEY)
    edge.ask("POST", "/v1/completions?q=confidential", json=body, headers={"authorization": "Bearer confidential"})
    edge.ask("GET", "/v1/x%0ay", headers=KEY)
    edge.ask("GET", "/health")
    assert len(lines) == 5
    text = "\n".join(lines)
    assert prompt not in text
    assert "sk-" not in text
    answers = [choice["text"] for choice in answer.json()["choices"]]
    assert all(len(answer) > 5 and answer not in text for answer in answers)
    assert text.count("\n") == 4
    if not lines[0].startswith("{"):
        assert " POST /v1/completions 200 " in lines[0]
        assert " key=key-2 " in lines[0]
        assert "completion_tokens=24" in lines[0]
        return
    whole, streamed, invalid, stranger, _ = (json.loads(line) for line in lines)
    assert whole["id"] == "mine-1"
    assert (whole["status"], whole["key"], whole["stream"], whole["path"]) == (200, "key-2", False, "/v1/completions")
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["finish_reasons"]) == (
        answer.json()["usage"]["prompt_tokens"], 24, ["length", "length"],
    )  # fmt: skip
    assert 0 < whole["ttft_s"] < whole["duration_s"]
    assert (streamed["status"], streamed["stream"], streamed["completion_tokens"]) == (200, True, 24)
    assert (invalid["status"], invalid["error"]) == (400, "invalid_request_error")
    assert (stranger["status"], stranger["key"]) == (401, "-")


def test_prompts_and_answers_where_they_are_asked_for(llm: AsyncLLM, lines: list[str]) -> None:
    edge = Edge(llm, log_prompts=True)
    body = {"prompt": ["confidential", "more"], "max_tokens": 3, "ignore_eos": True}
    answer = edge.ask("POST", "/v1/completions", json=body)
    (line,) = lines
    assert "confidential" in line
    if line.startswith("{"):
        entry = json.loads(line)
        assert [text.endswith(prompt) for text, prompt in zip(entry["prompts"], body["prompt"], strict=True)] == [True, True]  # type: ignore[call-overload]
        assert sorted(entry["answers"]) == sorted(choice["text"] for choice in answer.json()["choices"])


def test_control_characters_do_not_reach_the_terminal() -> None:
    record = logging.LogRecord("hotloop", logging.WARNING, "", 0, "a\x1b[2J\nb %s", ("é\x07",), None)
    line = HumanFormatter().format(record)
    assert line.endswith(r"WARNING a\x1b[2J\nb é\x07")


def test_an_exception_is_one_json_line(tmp_path: Path) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        import sys

        record = logging.LogRecord("hotloop", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["message"]) == ("ERROR", "failed")
    assert "KeyError: 'x'" in entry["exception"]


@pytest.mark.parametrize("chunked", [False, True])
def test_50_mb_are_refused_and_the_client_is_told(llm: AsyncLLM, chunked: bool) -> None:
    """On a connection: the answer arrives though the client goes on sending."""
    with live_server(llm, max_body_bytes=100_000) as url, httpx.Client(base_url=url, timeout=60) as client:
        pieces = (b"x" * 65536 for _ in range(800))
        content = pieces if chunked else b"".join(pieces)
        answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert client.get("/health").status_code == 200
