"""Over HTTP: an engine that dies is a pause in the streams; a request that kills engines ends with an error of its own."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine.faulty_worker import KILLS_LATER
from engine.processes import engine_process
from hotloop import AsyncLLM
from hotloop.engine.loading import ConnectedEngine
from hotloop.engine.supervisor import SupervisedClient
from server.live import live_server
from server.serving import choices, finish_reasons, stream, streaming, text_of
from tiny_models import random_tokens, write_tiny_model

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SupervisedClient]]:
    folder = tmp_path_factory.mktemp("recovery")
    model = write_tiny_model(folder / "tiny.gguf", "llama", formats="Q8_0", context_length=400)
    with engine_process(model, max_num_seqs=16) as (client, inputs):
        llm = AsyncLLM.over(ConnectedEngine(path=model, inputs=inputs, client=client, ceiling_bytes_per_s=0.0))
        with live_server(llm) as url:
            yield url, client
        llm.close()


def body(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "prompt": [1, *random_tokens(index, 10)], "max_tokens": 60, "seed": index, "temperature": 0.5 * (index % 3),
        "logprobs": 2, "n": 1 + index % 2, "repetition_penalty": 1.0 + 0.1 * index, "return_token_ids": True, **fields,
    }  # fmt: skip


def said(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """All that a client got: text, ids, logprobs and finish reasons of every choice."""
    got = []
    for index in (0, 1):
        parts = choices(events, index)
        ids = [i for part in parts for i in part.get("token_ids") or []]
        logprobs = [x for part in parts if part["logprobs"] for x in part["logprobs"]["token_logprobs"]]
        got.append((text_of(events, index), ids, logprobs, finish_reasons(events, index)))
    return got


def test_kills_are_pauses_in_the_streams(server: tuple[str, SupervisedClient]) -> None:
    url, engine = server
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(8) as threads:
        expected = [said(stream(client, COMPLETIONS, body(i))) for i in range(6)]
        assert len(expected[1][1][1]) == len(expected[1][0][1]) == 60
        num_restarts = engine.num_restarts
        some = [threading.Event() for _ in range(6)]

        def read(i: int) -> list[tuple[Any, ...]]:
            events = []
            with streaming(client, COMPLETIONS, body(i)) as parts:
                for event in parts:
                    events.append(event)
                    if len(events) == 5:
                        some[i].set()
            return said(events[:-1])

        reading = [threads.submit(read, i) for i in range(6)]
        for event in some:
            assert event.wait(30)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert [answer.result() for answer in reading] == expected
        assert engine.num_restarts == num_restarts + 1


def test_a_rigged_request_fails_alone(server: tuple[str, SupervisedClient]) -> None:
    url, _ = server
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(8) as threads:
        expected = [said(stream(client, COMPLETIONS, body(i))) for i in range(4)]
        rigged = threads.submit(stream, client, COMPLETIONS, body(9, prompt=[KILLS_LATER, 5, 6]))
        others = [threads.submit(stream, client, COMPLETIONS, body(i)) for i in range(4)]
        assert [said(answer.result()) for answer in others] == expected
        *_, error = rigged.result()
        assert "again and again" in error["error"]["message"]
        answer = client.post(COMPLETIONS, json=body(9, prompt=[KILLS_LATER, 5, 6]))
        assert answer.status_code == 500
        assert "again and again" in answer.json()["error"]["message"]
        assert said(stream(client, COMPLETIONS, body(0))) == expected[0]
