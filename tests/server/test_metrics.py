"""GET /metrics of a live server: what clients did is in it, and no more."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hotloop import AsyncLLM
from server.live import live_server
from tiny_models import write_tiny_model

BODY = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True, "seed": 1}
GAUGES = ("running", "waiting", "queued")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", context_length=2048)
    llm = AsyncLLM(model)
    yield llm
    llm.close()


@pytest.fixture
def url(llm: AsyncLLM) -> Iterator[str]:
    with live_server(llm) as url:
        yield url


def scrape(url: str) -> dict[str, float]:
    """name{the value of its own label} -> value."""
    response = httpx.get(f"{url}/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            own = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            values[sample.name.removeprefix("hotloop:") + (f"{{{own[0]}}}" if own else "")] = sample.value
    return values


def idle(url: str) -> dict[str, float]:
    """A scrape after the gauges went back to 0, which takes two steps at most."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        values = scrape(url)
        if not any(values[f"num_requests_{gauge}"] for gauge in GAUGES) and not values["kv_cache_usage_perc"]:
            return values
        time.sleep(0.02)
    raise AssertionError(f"the gauges do not return to 0: {values}")


def test_streams_are_counted_and_timed(url: str) -> None:  # known fault B107
    """No latency is longer than a client's stopwatch says; queueing is in it (the tiny engine runs 32 at a time)."""
    waited_s: list[tuple[float, float]] = []

    async def one(client: httpx.AsyncClient) -> None:
        start_s = time.monotonic()
        first_s = 0.0
        async with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                first_s = first_s or (time.monotonic() - start_s if line else 0)
        waited_s.append((first_s, time.monotonic() - start_s))

    async def main() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await asyncio.gather(*(one(client) for _ in range(40)))

    asyncio.run(main())
    values = idle(url)
    assert values["request_success_total{length}"] == values["e2e_request_latency_seconds_count"] == 40
    assert values["generation_tokens_total"] == values["request_generation_tokens_sum"] == 40 * 20
    assert values["time_to_first_token_seconds_count"] == 40
    assert values["inter_token_latency_seconds_count"] == 40 * 19
    assert 0 < values["time_to_first_token_seconds_sum"] <= sum(first_s for first_s, _ in waited_s)
    assert 0 < values["e2e_request_latency_seconds_sum"] <= sum(all_s for _, all_s in waited_s)
    assert 40 <= values["token_delivery_seconds_count"] <= 40 * 20
    prompt_tokens = values["prompt_tokens_total"]
    assert prompt_tokens == values["request_prompt_tokens_sum"] == values["prefix_cache_queries_total"] > 0


def slow_down(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long request does not end before the test does something to it."""
    core = llm._pump.client._core
    step = core.step
    monkeypatch.setattr(core, "step", lambda: (time.sleep(0.01), step())[1])


def test_a_client_that_leaves_is_counted_as_such(url: str, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(llm, monkeypatch)
    with httpx.Client(base_url=url, timeout=60) as client:
        body = {**BODY, "max_tokens": 1500, "stream": True, "n": 2}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # it closes the connection when it goes
            next(lines)
            during = scrape(url)
    values = idle(url)
    assert during["num_requests_running"] == 2
    assert during["kv_cache_usage_perc"] > 0
    assert {name: value for name, value in values.items() if name.startswith("request_success") and value} == {
        "request_success_total{abort}": 1
    }
    assert values["request_params_n_sum"] == 2
    assert values["generation_tokens_total"] < 3000


def test_the_queue_is_counted(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one runs: one waits until its time is over, one until its client leaves; meanwhile one more is too many."""
    slow_down(llm, monkeypatch)

    async def main(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def ask(**fields: object) -> httpx.Response:
                return await client.post("/v1/completions", json=BODY | fields)

            async def until(name: str, value: float) -> None:
                while scrape(url).get(name, 0) != value:
                    await asyncio.sleep(0.01)

            running = asyncio.create_task(ask(max_tokens=1500))
            await until("num_requests_running", 1)
            assert (await ask(timeout_s=0.05)).status_code == 408
            waiting = asyncio.create_task(ask())
            await until("num_requests_queued", 1)
            assert scrape(url)["num_requests_waiting"] == 1
            assert (await ask()).status_code == 429
            waiting.cancel()
            await until("num_requests_queued", 0)
            running.cancel()
            await until("http_responses_total{499}", 2)

    with live_server(llm, capacity=1, max_queued_requests=1) as url:
        asyncio.run(main(url))
        values = idle(url)
    for reason in ("deadline", "overloaded", "left"):
        assert values[f"requests_rejected_total{{{reason}}}"] == 1
    assert values["request_success_total{abort}"] == 1
    assert [values[f"http_responses_total{{{status}}}"] for status in (408, 429)] == [1, 1]


@pytest.mark.parametrize(
    "body", [{"prompt": 7}, {"prompt": "x", "n": 0}, {"nonsense": 1}, [], {"prompt": "x", "model": "y"}]
)
def test_what_is_refused_never_ran(url: str, body: object) -> None:
    assert httpx.post(f"{url}/v1/completions", json=body).status_code in (400, 404)
    values = scrape(url)
    assert values["requests_rejected_total{invalid}"] == 1
    assert not any(value for name, value in values.items() if name.startswith(("request_success", "prompt_tokens")))
