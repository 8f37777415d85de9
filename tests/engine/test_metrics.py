"""Metrics of an engine in a process of its own that dies at work."""

import asyncio
import os
import signal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hotloop import AsyncLLM, SamplingParams
from hotloop.engine.serving import start_engine_process
from hotloop.engine.supervisor import SupervisedClient
from hotloop.telemetry.prometheus import Metrics

NUM_TOKENS = 400


def test_a_killed_engine_takes_nothing_back(model: Path) -> None:  # known faults B81, B107
    """Every request has one first token and NUM_TOKENS - 1 gaps, the one in which the engine died included."""
    engine = start_engine_process(model, {"max_model_len": 600}, watchdog_s=60)
    client = engine.client
    assert isinstance(client, SupervisedClient)
    llm = AsyncLLM.over(engine)
    metrics = Metrics(
        "m", llm.config, llm.info.num_blocks, 1e9, num_open=lambda: llm.num_open, engine_pid=lambda: client.pid
    )
    client.observer = metrics
    before: dict[str, float] = {}

    async def read(number: int) -> None:
        received = 0
        async for chunk in llm.generate(
            f"hello {number}", SamplingParams(max_tokens=NUM_TOKENS, seed=number, ignore_eos=True)
        ):
            received += len(chunk.token_ids)
            if not before and received > 20:
                before.update(scrape(metrics))
                os.kill(client.pid or 0, signal.SIGKILL)
            if chunk.output is not None:
                metrics.request_finished(chunk.output)

    async def main() -> None:
        async with llm:
            await asyncio.gather(*(read(number) for number in range(4)))
            while scrape(metrics)["hotloop:kv_cache_usage_perc"]:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    after = scrape(metrics)
    assert all(after[name] >= value for name, value in before.items() if name.endswith(("_total", "_count", "_sum")))
    assert after["hotloop:engine_restarts_total"] == client.num_restarts == 1
    assert after["hotloop:time_to_first_token_seconds_count"] == 4
    assert after["hotloop:inter_token_latency_seconds_count"] == 4 * (NUM_TOKENS - 1)
    assert after["hotloop:generation_tokens_total"] == 4 * NUM_TOKENS
    assert after["hotloop:request_success_total"] == after["hotloop:e2e_request_latency_seconds_count"] == 4
    assert after["hotloop:num_requests_running"] == after["hotloop:num_requests_waiting"] == 0
    assert abs(after["hotloop:request_seconds_total"] - after["hotloop:e2e_request_latency_seconds_sum"]) < 1e-6


def scrape(metrics: Metrics) -> dict[str, float]:
    """Sums over labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if not sample.name.startswith("hotloop:engine_process") and not sample.name.endswith("_bucket"):
                values[sample.name] = values.get(sample.name, 0) + sample.value
    return values
