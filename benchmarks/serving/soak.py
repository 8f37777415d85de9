"""Mixed load on a server for a long time: nothing fails that should not, nothing leaks, nothing is left behind.

python benchmarks/serving/soak.py MODEL [--minutes 20] [--warmup-minutes 3] [--clients 64] [--log FILE] [-- SERVE_OPTIONS]

Starts `hotloop serve MODEL` and runs short, long, several-choice, slow-reading, aborting and malformed requests together. Every
answer is checked: its shape, its usage, and that the same request has the same text every time. Ends with the gauges at 0,
the block pool whole, and SIGTERM. The last line is one JSON object (fields: schema.toml, soak); the exit status is 1 if
``failures`` is not empty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exchange import Exchange, get
from mixed_load import MixedLoad, WrongAnswerError
from prometheus_client.parser import text_string_to_metric_families
from servers import ServerError, hotloop, running

GAUGES = ("hotloop:num_requests_running", "hotloop:num_requests_waiting", "hotloop:kv_cache_usage_perc")
MOST_GROWTH = 0.03
SAMPLE_S = 5.0
POOL_BYTES = 256 << 20  # blocks are used one after the other: all of them by the end of the warm-up


class Sample(NamedTuple):
    """One look at the server: when, resident memory of its processes, how long /health took."""

    minute: float
    server_bytes: float
    engine_bytes: float
    health_s: float


@dataclass
class Soak:
    """A server under load, and samples of it."""

    load: MixedLoad
    started_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    _counters: dict[str, float] = field(default_factory=dict)

    async def metrics(self) -> dict[str, float]:
        """A scrape, labels dropped (summed over); what counts must not fall."""
        async with Exchange(self.load.port, get("/metrics")) as exchange:
            text = (await exchange.body()).decode()
        values: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    values[sample.name] += sample.value
                if family.type in ("counter", "histogram"):
                    key = f"{sample.name} {sorted(sample.labels.items())}"
                    if sample.value < self._counters.get(key, 0.0) and "engine_process" not in key:
                        self.load.fail(f"metrics: {key} fell")
                    self._counters[key] = sample.value
        return values

    async def watch(self) -> None:
        """Samples, and a line per minute, until cancelled."""
        tokens, minute = 0, 0.0
        while True:
            await asyncio.sleep(SAMPLE_S)
            try:
                values = await self._sample()
            except (OSError, EOFError) as error:
                self.load.fail(f"health, metrics: {type(error).__name__} {error}")
                continue
            last = self.samples[-1]
            if last.minute < int(minute) + 1:
                continue
            tokens_per_s = (self.load.tokens - tokens) / (60 * (last.minute - minute))
            tokens, minute = self.load.tokens, last.minute
            print(
                f"minute {minute:.0f}: {self.load.requests.total()} requests, {tokens_per_s:.0f} tokens/s in complete "
                f"answers, server {last.server_bytes / 1e6:.1f} MB, engine {last.engine_bytes / 1e6:.1f} MB, running "
                f"{values[GAUGES[0]]:.0f}, waiting {values[GAUGES[1]]:.0f}, failures {self.load.failures.total()}",
                file=sys.stderr,
            )

    async def _sample(self) -> dict[str, float]:
        started_s = time.monotonic()
        async with Exchange(self.load.port, get("/health")) as exchange:
            reason = await exchange.body()
        health_s = time.monotonic() - started_s
        if exchange.status != 200:
            self.load.fail(f"health: status {exchange.status}: {reason!r:.100}")
        values = await self.metrics()
        server, engine = (values[f"{name}process_resident_memory_bytes"] for name in ("", "hotloop:engine_"))
        self.samples.append(Sample((time.monotonic() - self.started_s) / 60, server, engine, health_s))
        return values

    async def settle(self) -> None:
        """With nobody there, every gauge is 0 within seconds; and again after one more request."""
        await self._idle("after the load")
        await self.load.short()
        values = await self._idle("after one more request")
        if values["hotloop:engine_restarts_total"]:
            self.load.fail("the engine was restarted")

    async def _idle(self, when: str) -> dict[str, float]:
        for _ in range(100):
            values = await self.metrics()
            if not any(values[name] for name in GAUGES):
                return values
            await asyncio.sleep(0.1)
        self.load.fail(f"{when}: " + ", ".join(f"{name} is {values[name]:g}" for name in GAUGES))
        return values


async def run(soak: Soak, minutes: float, clients: int) -> None:
    until_s = soak.started_s + 60 * minutes
    watching = asyncio.create_task(soak.watch())
    await asyncio.gather(*(soak.load.client(until_s) for _ in range(clients)))
    watching.cancel()
    try:
        await soak.settle()
    except (OSError, EOFError, WrongAnswerError) as error:
        soak.load.fail(f"the end: {type(error).__name__} {error}")


def growth(resident: Sequence[tuple[float, float]], warmup_minutes: float, minutes: float) -> float:
    """Growth from the end of the warm-up to the end: medians of a tenth of the time in between, a quarter of a minute at
    least. resident: (minute, bytes)."""
    span = max((minutes - warmup_minutes) / 10, 0.25)
    first = [size for minute, size in resident if warmup_minutes <= minute <= warmup_minutes + span]
    last = [size for minute, size in resident if minutes - span <= minute <= minutes]
    return statistics.median(last) / statistics.median(first) - 1


def summary(soak: Soak, model: str, minutes: float, warmup_minutes: float, clients: int) -> dict[str, Any]:
    """The JSON object."""
    samples = soak.samples
    return {
        "bench": "soak",
        "model": model,
        "minutes": minutes,
        "warmup_minutes": warmup_minutes,
        "clients": clients,
        "requests": dict(soak.load.requests),
        "generated_tokens": soak.load.tokens,
        "server_resident_bytes": samples[-1].server_bytes,
        "engine_resident_bytes": samples[-1].engine_bytes,
        "server_resident_growth": growth([(s.minute, s.server_bytes) for s in samples], warmup_minutes, minutes),
        "engine_resident_growth": growth([(s.minute, s.engine_bytes) for s in samples], warmup_minutes, minutes),
        "health_s_median": statistics.median(s.health_s for s in samples),
        "health_s_max": max(s.health_s for s in samples),
        "failures": dict(soak.load.failures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--warmup-minutes", type=float, default=3)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="soak-server.log", help="what the server says goes here")
    parser.add_argument("serve_options", nargs="*")
    args = parser.parse_args()

    options = ["--served-model-name", "m", "--kv-cache-memory-bytes", str(POOL_BYTES), *args.serve_options]
    try:
        with running(hotloop(args.model, options), args.log) as server:
            soak = Soak(MixedLoad(server.port, "m", random.Random(args.seed)))
            asyncio.run(run(soak, args.minutes, args.clients))
            server.process.send_signal(signal.SIGTERM)
            status = server.process.wait(60)
            if status:
                soak.load.fail(f"SIGTERM: the server's exit status is {status}")
    except ServerError as error:
        sys.exit(f"soak.py: {error}")
    result = summary(soak, args.model, args.minutes, args.warmup_minutes, args.clients)
    for process_name in ("server", "engine"):
        if result[f"{process_name}_resident_growth"] > MOST_GROWTH:
            result["failures"][f"memory: the {process_name} grew"] = 1
    print(json.dumps(result))
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
