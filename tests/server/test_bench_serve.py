"""`hotloop bench serve` against hotloop's own server, and the server's account of time."""

import asyncio
from random import Random
from typing import Any

import pytest

from hotloop.bench.serving.connection import Address
from hotloop.bench.serving.load import run_closed
from hotloop.bench.serving.prompts import Lengths
from hotloop.bench.serving.serve import ServeOptions, bench_serve_blocking
from hotloop.bench.serving.target import Endpoint, find_target
from hotloop.telemetry.timings import PARTS


def bench(url: str, endpoint: Endpoint, **options: Any) -> dict[str, Any]:
    return bench_serve_blocking(
        ServeOptions(
            url, endpoint=endpoint, num_requests=12, num_warmup=0, prompt_tokens=Lengths(40, 60),
            output_tokens=Lengths(6, 12), timeout_s=60.0, **options,
        ),
        lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("arrivals", [{"concurrency": 4}, {"requests_per_s": 500.0}])
def test_every_request_is_answered_in_full(url: str, endpoint: Endpoint, arrivals: dict[str, Any]) -> None:
    result = bench(url, endpoint, **arrivals)
    assert (result["num_completed"], result["failures"], result["length_field"]) == (12, {}, "ignore_eos")
    assert result["is_streamed"]
    assert result["has_usage"]
    assert 6 <= result["output_tokens_mean"] <= 12
    # The scripted model has a token per character and the words differ in length: lengths come out near.
    assert 30 <= result["prompt_tokens_mean"] <= 80
    assert 0 < result["ttft_s"]["p50"] <= result["e2e_s"]["p50"]
    assert result["tpot_s"]["max"] < result["e2e_s"]["max"]


def test_the_servers_account_adds_up_and_is_within_the_clients(url: str) -> None:
    async def run() -> Any:
        target = await find_target(Address.parse(url), "completions", None, None, 60.0, {}, Random(0))
        return await run_closed(target, [target.random_request(50, 1 + i % 9, Random(i)) for i in range(40)], 8)

    for answer in asyncio.run(run()).answers:
        t = answer.timings
        assert answer.error is None
        assert t["drawn_tokens"] == answer.tokens
        assert t["e2e_s"] == pytest.approx(t["ttft_s"] + t["tpot_s"] * (answer.tokens - 1), abs=1e-3)
        assert t["e2e_s"] == pytest.approx(sum(t[part] for part in PARTS), abs=1e-6)
        assert t["e2e_s"] < answer.e2e_s
