"""Kills and stops the engine of a server at random moments under streams, and compares each with an undisturbed one.

python benchmarks/serving/chaos.py MODEL [--kills 50] [--stalls 5] [--streams 16] [--tokens 200] [--seed 0]
                                         [--log FILE] [-- SERVE_OPTIONS]

Starts `hotloop serve MODEL` and runs all streams once in peace: greedy and sampled, with penalties, biases, stop ids and
strings, several choices, logprobs. Then the same again and again while the engine is ended by SIGKILL, or stopped (SIGSTOP) for
the watchdog to find, each time after every open stream has had a chunk. Every stream must complete with the same SHA-256 of its
texts, ids, logprobs and finish reasons. The last line is one JSON object (fields: schema.toml, chaos); the exit status is 1
if ``failures`` is not empty.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exchange import Exchange, get, post
from servers import ServerError, hotloop, running

from hotloop.bench.serving.prompts import random_words

WATCHDOG_S = 3.0
MOST_GAP_S = 5.0  # of a kill


def body_of(index: int, tokens: int) -> dict[str, Any]:
    """The request of a stream: always the same."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "top_k": 40, "logprobs": 3},
        {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02, "n": 3},
        {
            "temperature": 0.7,
            "repetition_penalty": 1.3,
            "frequency_penalty": 0.5,
            "presence_penalty": 0.5,
            "logprobs": 0,
        },
        {"temperature": 1.0, "stop": ["xyzzy", "the end of the"], "min_tokens": 5, "logprobs": 1},
        {"temperature": 1.0, "logit_bias": {"7": 3.0, "28": -5.0}, "stop_token_ids": [199, 511], "n": 2, "logprobs": 2},
        {"temperature": 0, "repetition_penalty": 1.1, "ignore_eos": True},
    ]
    prompt = random_words(8 + 5 * index, random.Random(index))
    body = {"prompt": prompt, "max_tokens": tokens, "seed": 1000 + index, "ignore_eos": index % 3 > 0}
    return {"stream": True, "return_token_ids": True, **body, **kinds[index % len(kinds)]}


@dataclass(eq=False)
class Stream:
    """One answer on its way."""

    num_chunks: int = 0
    last_s: float = 0.0
    is_open: bool = True
    choices: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        for part in event["choices"]:
            choice = self.choices.setdefault(
                part["index"], {"text": "", "token_ids": [], "logprobs": [], "top_logprobs": [], "finish_reason": None}
            )
            choice["text"] += part["text"]
            choice["token_ids"] += part.get("token_ids") or []
            if part["logprobs"]:
                logprobs = part["logprobs"]
                choice["logprobs"] += logprobs["token_logprobs"]
                choice["top_logprobs"] += logprobs["top_logprobs"] or []
            choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.choices, sort_keys=True).encode()).hexdigest()


@dataclass(eq=False)
class Disturbance:
    """at_s: when. gap_s: the longest silence over it of any stream that went on."""

    signal: signal.Signals
    at_s: float
    gap_s: float = 0.0


@dataclass
class Chaos:
    port: int
    server_pid: int
    num_streams: int
    tokens: int
    rng: random.Random
    failures: Counter[str] = field(default_factory=Counter)
    streams: list[Stream] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    num_completed: int = 0

    def fail(self, what: str) -> None:
        print(f"FAILED: {what}", file=sys.stderr)
        self.failures[what] += 1

    async def round(self) -> list[str]:
        """All streams to their ends. Returns their hashes."""
        self.streams = [Stream() for _ in range(self.num_streams)]
        await asyncio.gather(*(self._stream(index, stream) for index, stream in enumerate(self.streams)))
        return [stream.sha256 for stream in self.streams]

    async def _stream(self, index: int, stream: Stream) -> None:
        try:
            request = post("/v1/completions", body_of(index, self.tokens))
            async with Exchange(self.port, request) as exchange:
                if exchange.status != 200:
                    self.fail(f"status {exchange.status}: {(await exchange.body())[:200]!r}")
                    return
                async for event in exchange.events():
                    if event is None:
                        self.num_completed += 1
                        return
                    if "error" in event:
                        self.fail(f"an error: {event['error']}")
                        return
                    self._note(stream)
                    stream.take(event)
            self.fail("a stream ended without [DONE]")
        except (OSError, EOFError, ValueError) as error:
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            stream.is_open = False

    def _note(self, stream: Stream) -> None:
        now_s = time.perf_counter()
        if self.disturbances and stream.last_s and stream.last_s < self.disturbances[-1].at_s:
            last = self.disturbances[-1]
            last.gap_s = max(last.gap_s, now_s - stream.last_s)
        stream.num_chunks += 1
        stream.last_s = now_s

    async def disturb(self, signals: list[signal.Signals]) -> None:
        """One after the other, at random moments after the engine gave every open stream a chunk."""
        last_pid = 0
        for number in signals:
            is_at_work = False
            while not is_at_work:
                pid = await self._progress(last_pid)
                await asyncio.sleep(self.rng.random())
                is_at_work = any(stream.is_open for stream in self.streams)
            self.disturbances.append(Disturbance(number, time.perf_counter()))
            os.kill(pid, number)
            last_pid = pid
            print(f"{number.name} {len(self.disturbances)}", file=sys.stderr)
        await self._progress(last_pid)

    async def _progress(self, last_pid: int) -> int:
        """Wait for another engine process than the last one, and for a chunk from it for every open stream."""
        while (pid := self._engine_pid()) in (None, last_pid):
            await asyncio.sleep(0.005)
        since_s = time.perf_counter()
        while True:
            open_ = [stream for stream in self.streams if stream.is_open]
            if open_ and all(stream.last_s > since_s for stream in open_):
                return pid
            await asyncio.sleep(0.005)

    def gaps_s(self, number: signal.Signals) -> list[float]:
        return [disturbance.gap_s for disturbance in self.disturbances if disturbance.signal == number]

    def _engine_pid(self) -> int | None:
        for children in Path(f"/proc/{self.server_pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):  # gone just now
                    if b"hotloop.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return int(pid)
        return None


async def run(chaos: Chaos, signals: list[signal.Signals]) -> None:
    expected = await chaos.round()
    if await chaos.round() != expected:
        chaos.fail("two undisturbed runs differ")
    disturbing = asyncio.create_task(chaos.disturb(signals))
    while not disturbing.done() and not chaos.failures:
        for index, (got, wanted) in enumerate(zip(await chaos.round(), expected, strict=True)):
            if got != wanted:
                chaos.fail(f"stream {index} differs")
    if not disturbing.cancel():
        disturbing.result()  # or what it raised
    async with Exchange(chaos.port, get("/health")) as exchange:
        if exchange.status != 200:
            chaos.fail(f"/health is {exchange.status} afterwards")


def summary(chaos: Chaos, model: str) -> dict[str, Any]:
    """The JSON object."""
    kill_gaps_s, stall_gaps_s = chaos.gaps_s(signal.SIGKILL), chaos.gaps_s(signal.SIGSTOP)
    return {
        "bench": "chaos",
        "model": model,
        "kills": len(kill_gaps_s),
        "stalls": len(stall_gaps_s),
        "streams": chaos.num_streams,
        "completed_streams": chaos.num_completed,
        "kill_gap_s_median": statistics.median(kill_gaps_s or [0.0]),
        "kill_gap_s_max": max(kill_gaps_s, default=0.0),
        "stall_gap_s_max": max(stall_gaps_s, default=0.0),
        "watchdog_s": WATCHDOG_S,
        "failures": chaos.failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stalls", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="chaos-server.log", help="what the server says goes here")
    parser.add_argument("serve_options", nargs="*")
    args = parser.parse_args()

    rng = random.Random(args.seed)
    signals = [signal.SIGKILL] * args.kills + [signal.SIGSTOP] * args.stalls
    rng.shuffle(signals)
    try:
        with running(hotloop(args.model, ["--watchdog-s", str(WATCHDOG_S), *args.serve_options]), args.log) as server:
            chaos = Chaos(server.port, server.process.pid, args.streams, args.tokens, rng)
            asyncio.run(run(chaos, signals))
    except ServerError as error:
        sys.exit(f"chaos.py: {error}")
    if len(chaos.disturbances) < len(signals):
        chaos.fail("not every disturbance took place")
    if any(gap_s > MOST_GAP_S for gap_s in chaos.gaps_s(signal.SIGKILL)):
        chaos.fail(f"a kill made a stream wait for more than {MOST_GAP_S} s")
    print(json.dumps(summary(chaos, args.model)))
    sys.exit(bool(chaos.failures))


if __name__ == "__main__":
    main()
