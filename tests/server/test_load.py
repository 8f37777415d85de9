"""Load, cancellation and health of a `hotloop serve`. More: test_overload.py, test_drain.py, test_disconnects.py."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, cycle, islice
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.models import Scripted
from server.serving import DONE, Event, ServerProcess, eventually, streaming, text_of

COMPLETIONS = "/v1/completions"
ALPHABET = {"prompt": "abc", "temperature": 0}
ENDLESS = {**ALPHABET, "max_tokens": 90_000}


def alphabet(length: int) -> str:
    """What follows "abc": ASCII from "d" on, and after "~" from the space on again."""
    characters = [chr(code) for code in range(ord(" "), ord("~") + 1)]
    return "".join(islice(cycle(characters), ord("d") - ord(" "), ord("d") - ord(" ") + length))


def metrics(client: httpx.Client) -> dict[str, float]:
    """Each metric's samples, summed over all labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def assert_idle(client: httpx.Client) -> None:
    """Nothing runs or waits, and all blocks are free."""
    gauges = ("hotloop:num_requests_running", "hotloop:num_requests_waiting", "hotloop:kv_cache_usage_perc")
    eventually(lambda: not any(metrics(client)[name] for name in gauges), "an idle engine")


@pytest.fixture(scope="module")
def small(home: Path, scripted_path: Path) -> Iterator[ServerProcess]:
    """Two requests at a time and a short queue."""
    options = ["--max-num-seqs", "2", "--max-queued-requests", "8"]
    with ServerProcess(scripted_path, *options, home=home) as server:
        yield server


@contextmanager
def begun(server: ServerProcess, body: Mapping[str, Any], **options: Any) -> Iterator[Iterator[Event]]:
    """A stream of which the first event has come; nobody reads on. Its client leaves with the context."""
    with server.client(**options) as client, streaming(client, COMPLETIONS, body) as events:
        first = next(events)
        yield chain([first], events)


@contextmanager
def two_running(server: ServerProcess) -> Iterator[None]:
    """All that the small server runs together."""
    with begun(server, ENDLESS), begun(server, ENDLESS):
        yield


def eventually_waiting(client: httpx.Client, count: int) -> None:
    eventually(lambda: metrics(client)["hotloop:num_requests_waiting"] == count, f"{count} requests wait")


def test_a_stream_that_is_left_ends_in_the_engine(small: ServerProcess) -> None:  # known faults B52, B83
    with small.client() as client:
        for _ in range(3):
            with begun(small, ENDLESS):
                assert metrics(client)["hotloop:num_requests_running"] == 1
            assert_idle(client)
        before = metrics(client)["hotloop:generation_tokens_total"]
        time.sleep(0.2)
        assert metrics(client)["hotloop:generation_tokens_total"] == before


def test_disconnects_while_blocks_are_short(home: Path, scripted_path: Path) -> None:  # known faults B52, B81, B115
    options = ["--max-num-seqs", "8", "--kv-cache-memory-bytes", str(60 * 16 * 2 * 32 * 2), "--max-model-len", "600"]
    with ServerProcess(scripted_path, *options, home=home) as server, server.client() as client:
        seen: list[dict[str, float]] = []
        done = Flag()

        def scrape() -> None:
            with server.client() as own:
                while not done.wait(0.02):
                    seen.append(metrics(own))

        def use(number: int) -> None:
            chance = random.Random(number)
            with server.client() as own, streaming(own, COMPLETIONS, {**ALPHABET, "max_tokens": 250}) as events:
                read = []
                for event in events:
                    read.append(event)
                    if chance.random() < 0.03:
                        return
                assert text_of(read[:-1]) == alphabet(250)

        scraper = Thread(target=scrape)
        scraper.start()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(use, range(48)))
        done.set()
        scraper.join()
        assert_idle(client)
        assert metrics(client)["hotloop:num_preemptions_total"] > 0
        for name in seen[-1]:
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                values = [sample[name] for sample in seen if name in sample]
                assert values == sorted(values), name


def test_every_choice_counts_in_the_queue(small: ServerProcess) -> None:  # known fault B85
    def ask(**fields: Any) -> httpx.Response:
        return client.post(COMPLETIONS, json={**ALPHABET, "max_tokens": 4, **fields})

    with small.client() as client, ThreadPoolExecutor(3) as pool:
        with two_running(small):
            waiting = []
            for n, total in ((1, 1), (5, 6), (3, 9)):  # the first waits in the engine, the queue has room for 8
                waiting.append(pool.submit(ask, n=n))
                eventually_waiting(client, total)
            for fields in ({"n": 1}, {"prompt": ["a", "b"]}, {"n": 9}):
                assert ask(**fields).status_code == 429
        assert [len(future.result().json()["choices"]) for future in waiting] == [1, 5, 3]
        assert len(ask(n=9).json()["choices"]) == 9  # more than run together


def test_a_priority_goes_first(small: ServerProcess) -> None:  # known fault B137
    order: list[int] = []

    def use(priority: int) -> None:
        body = {**ALPHABET, "max_tokens": 50, "priority": priority}
        assert client.post(COMPLETIONS, json=body).status_code == 200
        order.append(priority)

    with small.client() as client, ThreadPoolExecutor(8) as pool:
        with two_running(small):
            futures = []
            for count, priority in enumerate((5, 5, 5, 5, 5, 5, 5, -1), 1):
                futures.append(pool.submit(use, priority))
                eventually_waiting(client, count)
        for future in futures:
            future.result()
    assert order.index(-1) < 5


def test_health_of_an_engine_that_dies(small: ServerProcess) -> None:  # known faults B78, B112
    with small.client() as client:
        with begun(small, {**ALPHABET, "max_tokens": 3000}) as events:
            os.kill(small.engine_pid(), signal.SIGKILL)
            *rest, end = events
        assert end is DONE
        assert text_of(rest) == alphabet(3000)
        eventually(lambda: client.get("/health").status_code == 200, "/health is well again")
        assert metrics(client)["hotloop:engine_restarts_total"] == 1
        assert_idle(client)


def test_control_routes_answer_during_a_long_prefill(scripted: Scripted) -> None:  # known faults B108, B132
    with scripted.server.client() as client, scripted.server.client() as other, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other.post, COMPLETIONS, json={"prompt": [65] * 10_000, "max_tokens": 1, "cache_salt": "cold"})
        waits = []
        while not answer.done():
            for path in ("/health", "/metrics", "/v1/models", "/ready"):
                begin = time.monotonic()
                assert client.get(path).status_code == 200
                waits.append(time.monotonic() - begin)
        assert answer.result().status_code == 200
        assert len(waits) > 4
        assert max(waits) < 1


def test_a_huge_prompt_holds_up_no_stream(scripted: Scripted) -> None:  # known fault B108
    gaps: list[float] = []
    done = Flag()

    def read() -> None:
        with scripted.server.client() as own, streaming(own, COMPLETIONS, ENDLESS) as events:
            last = time.monotonic()
            for _ in events:
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                if done.is_set():
                    return

    reader = Thread(target=read)
    reader.start()
    try:
        with scripted.server.client() as client:
            for text in ("a" * 2**20, "\u4e00" * 350_000, "😀" * 30_000):
                assert client.post(COMPLETIONS, json={"prompt": text}).status_code == 400
    finally:
        done.set()
        reader.join()
    assert max(gaps) < 1


def test_memory_of_both_processes_stays_flat(small: ServerProcess) -> None:  # known fault B123
    def resident_bytes() -> int:
        pids = (small.process.pid, small.engine_pid())
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") for pid in pids)

    def use(numbers: range) -> None:
        with small.client() as own:
            for number in numbers:
                kinds: list[dict[str, Any]] = [{}, {"prompt": [10**6]}, {"stop": ""}, {"timeout_s": 1e-6}, {"n": 2}]
                body = {"prompt": f"unique {number}", "max_tokens": 1, **kinds[number % len(kinds)]}
                assert own.post(COMPLETIONS, json=body).status_code in (200, 400, 408)
        with begun(small, ENDLESS):
            pass

    def round_of(begin: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(use, [range(begin, begin + 100), range(begin + 100, begin + 200)]))

    for number in range(3):
        round_of(200 * number)
    warm = resident_bytes()
    for number in range(3, 6):
        round_of(200 * number)
    assert resident_bytes() - warm < 600 * 1024
