"""More than the server can do: who is refused, who is served, and whose turn it is. And an engine that stands still."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.serving import DONE, ServerProcess, eventually, finish_reasons, metric, streaming, text_of

COMPLETIONS = "/v1/completions"
ENDLESS = 90_000


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def body(max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": "abc", "max_tokens": max_tokens, "temperature": 0, **fields}


def queued(client: httpx.Client) -> float:
    return metric(client, "hotloop:num_requests_queued")


def test_a_full_queue_refuses_early_and_says_until_when(home: Path, scripted_path: Path, threads: ThreadPoolExecutor) -> None:
    # known fault B85
    limits = ["--max-num-seqs", "1", "--max-queued-requests", "8"]
    with ServerProcess(scripted_path, *limits, home=home) as server, server.client() as client:
        with streaming(client, COMPLETIONS, body(ENDLESS)) as events:
            next(events)
            waiting = [threads.submit(client.post, COMPLETIONS, json=body(20)) for _ in range(3)]
            waiting += [threads.submit(client.post, COMPLETIONS, json=body(20, n=3)) for _ in range(2)]
            eventually(lambda: queued(client) == 8)  # one is in the engine, behind the stream
            start_s = time.monotonic()
            refused = [threads.submit(client.post, COMPLETIONS, json=body(20, n=1 + i % 2)) for i in range(24)]
            answers = [answer.result() for answer in refused]
            assert time.monotonic() - start_s < 20
            assert {answer.status_code for answer in answers} == {429}
            assert all("8 requests" in answer.json()["error"]["message"] for answer in answers)
            retry_s = sorted(int(answer.headers["retry-after"]) for answer in answers)
            assert retry_s[0] >= 1
            assert retry_s[-1] > retry_s[0]  # not all at once
            assert queued(client) == 8
            assert metric(client, "hotloop:requests_rejected_total") == 24
        statuses = Counter(answer.result().status_code for answer in waiting)
        assert statuses == {200: 5}
        assert queued(client) == 0
        assert client.post(COMPLETIONS, json=body(5)).status_code == 200


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_keys_take_turns(home: Path, scripted_path: Path, threads: ThreadPoolExecutor) -> None:
    keys = ["--api-key", "a", "--api-key", "b", "--public-metrics"]
    with ServerProcess(scripted_path, "--max-num-seqs", "1", *keys, home=home) as server, server.client() as client:
        ended: list[str] = []

        def ask(key: str) -> None:
            answer = client.post(COMPLETIONS, json=body(200), headers=headers(key))
            assert answer.status_code == 200
            ended.append(key)

        with server.client(headers=headers("a")) as keyed, streaming(keyed, COMPLETIONS, body(ENDLESS)) as events:
            next(events)
            asking = [threads.submit(ask, "a") for _ in range(8)]
            eventually(lambda: queued(client) == 7)
            asking += [threads.submit(ask, "b") for _ in range(2)]
            eventually(lambda: queued(client) == 9)
        for answer in asking:
            answer.result()
        assert ended.index("b") <= 3  # behind the one that was in the engine, and one turn of a's
        assert "b" not in ended[6:]


def test_who_leaves_or_is_late_waits_no_longer(home: Path, scripted_path: Path) -> None:  # known fault B83
    with (
        ServerProcess(scripted_path, "--max-num-seqs", "1", home=home) as server,
        server.client() as client,
        streaming(client, COMPLETIONS, body(ENDLESS)) as events,
        server.client(timeout_s=0.5) as impatient,
    ):
        next(events)
        for _ in range(3):  # the first gets into the engine
            with pytest.raises(httpx.ReadTimeout):
                impatient.post(COMPLETIONS, json=body(5))
        eventually(lambda: queued(client) == 0)
        with ThreadPoolExecutor(1) as pool:
            behind = pool.submit(client.post, COMPLETIONS, json=body(5))
            eventually(lambda: metric(client, "hotloop:num_requests_waiting") == 1)
            late = client.post(COMPLETIONS, json=body(5, timeout_s=0.3))
            assert late.status_code == 408
            assert late.json()["error"]["code"] == "deadline_exceeded"
            assert next(events)  # A is not B: nobody ended it
            events.close()  # type: ignore[attr-defined]
            assert behind.result().status_code == 200


def test_an_engine_that_stands_still_shows_and_is_replaced(home: Path, scripted_path: Path) -> None:  # known fault B78
    with ServerProcess(scripted_path, "--watchdog-s", "3", home=home) as server, server.client() as client:
        assert client.get("/health").status_code == 200
        with streaming(client, COMPLETIONS, body(2000)) as events:
            got = [next(events)]
            engine = server.engine_pid()
            os.kill(engine, signal.SIGSTOP)
            ill: list[str] = []  # what /health said

            def is_well() -> bool:
                health = client.get("/health")
                if health.status_code == 503:
                    ill.append(health.json()["reason"])
                return health.status_code == 200

            eventually(lambda: not is_well())
            assert client.get("/ready").status_code == 503
            eventually(is_well)
            assert ill[0].startswith("no step completed for ")
            assert any("started again" in reason for reason in ill)
            got += events
        assert got[-1] is DONE
        assert len(text_of(got[:-1])) == 2000
        assert finish_reasons(got[:-1]) == ["length"]
        assert server.engine_pid() != engine
