"""What serving adds to a bare engine, and whether a server's own account of time agrees with a stopwatch.

python benchmarks/serving/overhead.py MODEL [--streams 16] [--prompt-tokens 32] [--output-tokens 128] [--rounds 3]
    [--requests 200] [--threads N] [--serve-args=...]

Steps: the same crowd of greedy requests, all at once, decoded by an engine in this process that nobody reads text from, and
through `hotloop serve` as its client on the same machine sees them, in turn; only steps in which all decode count.
Delivery: from the step that drew a token to its bytes being written, from /metrics. Account: of each of --requests mixed
requests, how far E2E = TTFT + TPOT (n - 1) and the sum of the parts are off, and the client's E2E against the server's. The
last line is one JSON object (fields: schema.toml, serving_overhead). Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from servers import ServerError, hotloop, running

from hotloop import SamplingParams
from hotloop.bench.serving.answers import Answer
from hotloop.bench.serving.connection import Address
from hotloop.bench.serving.load import Run, run_closed
from hotloop.bench.serving.prompts import Lengths, random_words
from hotloop.bench.serving.target import Target, find_target
from hotloop.engine.loading import LoadedEngine, for_readers, load_engine
from hotloop.machine import default_num_threads
from hotloop.request import RequestId
from hotloop.telemetry.ceilings import measure_read_bandwidth
from hotloop.telemetry.timings import PARTS
from hotloop.weights.resolve import resolve

_PROMPTS = Lengths(16, 256)
_OUTPUTS = Lengths(8, 64)


def bare_events_s(engine: LoadedEngine, prompts: Sequence[str], max_tokens: int) -> list[list[float]]:
    """When each token of each of these greedy requests came out of the engine, stepped by this thread."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    requests = [request for prompt in prompts for request in engine.inputs.ask(prompt, params).requests]
    events_s: dict[RequestId, list[float]] = {request.request_id: [] for request in requests}
    engine.client.add(requests)
    while any(len(moments_s) < max_tokens for moments_s in events_s.values()):
        deltas = engine.client.poll()
        now_s = time.perf_counter()
        for delta in deltas:
            events_s[delta.request_id].append(now_s)
    return list(events_s.values())


def step_figures(events_s: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of the steps in which all requests decode, and nothing is prefilled: seconds between two."""
    begin_s = max(moments_s[0] for moments_s in events_s)
    end_s = min(moments_s[-1] for moments_s in events_s)
    inside = [[moment_s for moment_s in moments_s if begin_s <= moment_s <= end_s] for moments_s in events_s]
    num_steps = max(map(len, inside)) - 1  # a token without text is no event: some have fewer
    gaps_s = [after - before for moments_s in inside for before, after in pairwise(moments_s)]
    return {"step_s_mean": (end_s - begin_s) / num_steps, "step_s_median": statistics.median(gaps_s)}


def account_errors(answers: Sequence[Answer]) -> dict[str, float]:
    """How far the server's account of each request is off from itself, and from the client's stopwatch."""
    identity_s, parts_s, stopwatch = [], [], []
    for answer in answers:
        t = answer.timings
        assert t is not None, "the server sends no timings"
        e2e_s = t["e2e_s"]
        identity_s.append(abs(e2e_s - (t["ttft_s"] + t["tpot_s"] * (t["drawn_tokens"] - 1))))
        parts_s.append(abs(e2e_s - sum(t[part] for part in PARTS)))
        stopwatch.append((answer.e2e_s - e2e_s) / answer.e2e_s)
    return {
        "identity_error_s_max": max(identity_s),
        "parts_error_s_max": max(parts_s),
        "stopwatch_error_p50": float(np.median(stopwatch)),
        "stopwatch_error_max": max(stopwatch, key=abs),
        "stopwatch_within_5_percent": sum(abs(error) <= 0.05 for error in stopwatch) / len(stopwatch),
    }


@dataclass(frozen=True, slots=True)
class Scrape:
    """deliveries: upper bound in seconds -> deliveries that took at most so long. cpu_s: of the server's process."""

    deliveries: dict[float, float]
    cpu_s: float

    @classmethod
    def of(cls, metrics: str) -> Scrape:
        samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
        return cls(
            {float(s.labels["le"]): s.value for s in samples if s.name == "hotloop:token_delivery_seconds_bucket"},
            sum(s.value for s in samples if s.name == "process_cpu_seconds_total"),
        )


def quantile(counts: Mapping[float, float], share: float) -> float:
    """Linear inside the bucket, as Prometheus has it; the last finite bound for what is beyond."""
    wanted = share * counts[float("inf")]
    low_s = below = 0.0
    for bound_s, count in sorted(counts.items()):
        if count >= wanted:
            return low_s if bound_s == float("inf") else low_s + (bound_s - low_s) * (wanted - below) / (count - below)
        low_s, below = bound_s, count
    return low_s


def _scrape(url: str) -> Scrape:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        return Scrape.of(response.read().decode())


def _served(target: Target, requests: Sequence[bytes], concurrency: int) -> Run:
    """Raises ServerError unless all is answered."""
    run = uvloop.run(run_closed(target, requests, concurrency))
    if errors := [answer.error for answer in run.answers if answer.error is not None]:
        raise ServerError(f"{len(errors)} of {len(run.answers)} requests failed, the first: {errors[0]}")
    return run


def measure(engine: LoadedEngine, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """The measured part of the JSON object."""
    rng = Random()
    target = uvloop.run(find_target(Address.parse(url), "completions", None, None, 600.0, {}, rng))

    def prompts() -> list[str]:
        return [random_words(target.token_count.words(args.prompt_tokens), rng) for _ in range(args.streams)]

    def crowd(max_tokens: int) -> Run:
        return _served(target, [target.request(prompt, max_tokens) for prompt in prompts()], args.streams)

    bare_events_s(engine, prompts(), 16)
    crowd(16)
    before = _scrape(url)
    rounds = []
    client_cpu_s = 0.0
    for _ in range(args.rounds):
        bare = step_figures(bare_events_s(engine, prompts(), args.output_tokens))
        run = crowd(args.output_tokens)
        client_cpu_s += run.cpu_s
        served = step_figures([answer.events_s for answer in run.answers])
        rounds.append({"bare": bare, "served": served})
        print(
            f"step, mean (median): bare {bare['step_s_mean'] * 1e3:.2f} ms ({bare['step_s_median'] * 1e3:.2f}), served "
            f"{served['step_s_mean'] * 1e3:.2f} ms ({served['step_s_median'] * 1e3:.2f})",
            flush=True,
        )
    after = _scrape(url)
    counts = {bound: count - before.deliveries[bound] for bound, count in after.deliveries.items()}
    num_tokens = args.rounds * args.streams * args.output_tokens
    mixed = [target.random_request(_PROMPTS.draw(rng), _OUTPUTS.draw(rng), rng) for _ in range(args.requests)]
    return {
        "step_ratio": statistics.median(r["served"]["step_s_mean"] / r["bare"]["step_s_mean"] for r in rounds),
        "rounds": rounds,
        "delivery_p50_s": quantile(counts, 0.5),
        "delivery_p99_s": quantile(counts, 0.99),
        "delivery_within_5_ms": counts[0.005] / counts[float("inf")],
        "server_cpu_s_per_token": (after.cpu_s - before.cpu_s) / num_tokens,
        "client_cpu_s_per_token": client_cpu_s / num_tokens,
        **account_errors(_served(target, mixed, args.streams).answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="of the account")
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--serve-args", default="", help="more options of hotloop serve")
    args = parser.parse_args()

    load_average = os.getloadavg()[0]
    ceiling = measure_read_bandwidth(args.threads).read_bandwidth_bytes_per_s
    print(f"ceiling: {ceiling / 1e9:.1f} GB/s with {args.threads} threads; load average before: {load_average:.1f}")
    path: Path = resolve(args.model)
    size = {"max_num_seqs": args.streams, "max_model_len": 1024, "threads": args.threads}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in size.items()]
    engine = load_engine(path, for_readers(size))
    try:
        with running(hotloop(path, [*options, *args.serve_args.split()])) as server:
            measured = measure(engine, server.url, args)
    except ServerError as error:
        sys.exit(f"overhead.py: {error}")
    print(
        f"steps {measured['step_ratio'] - 1:+.1%}; processor time per token: server "
        f"{measured['server_cpu_s_per_token'] * 1e6:.0f} us, client {measured['client_cpu_s_per_token'] * 1e6:.0f} us; "
        f"delivery p99 {measured['delivery_p99_s'] * 1e3:.2f} ms; account off by "
        f"{measured['identity_error_s_max'] * 1e3:.3f} ms at most; stopwatch within 5 % on "
        f"{measured['stopwatch_within_5_percent']:.1%} of {args.requests} requests"
    )
    result = {
        "bench": "serving_overhead",
        "model": args.model,
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "num_requests": args.requests,
        "threads": args.threads,
        "read_bandwidth_ceiling_bytes_per_s": ceiling,
        "load_average": load_average,
        **measured,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
