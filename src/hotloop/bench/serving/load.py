"""Requests in flight: a fixed number at a time, or as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from hotloop.bench.serving.answers import Answer
from hotloop.bench.serving.target import Target


@dataclass(frozen=True, slots=True)
class Run:
    """answers: in the order of the requests. cpu_s: processor time that this client took."""

    answers: tuple[Answer, ...]
    cpu_s: float

    @property
    def duration_s(self) -> float:
        """From the first request sent to the last answer's end."""
        return max(a.ended_s for a in self.answers) - min(a.sent_s for a in self.answers)


async def run_closed(target: Target, requests: Sequence[bytes], concurrency: int) -> Run:
    """``concurrency`` clients, each sending its next request when its last one is answered."""
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(requests))

    async def client() -> None:
        for index, request in waiting:
            answers[index] = await target.ask(request)

    begin_cpu_s = time.process_time()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return Run(tuple(answers[i] for i in range(len(requests))), time.process_time() - begin_cpu_s)


async def run_open(target: Target, requests: Sequence[bytes], arrivals_s: Sequence[float]) -> Run:
    """Every request is sent at its time after the start, however many others are in flight; times count from then."""
    begin_s = time.perf_counter()
    begin_cpu_s = time.process_time()

    async def client(request: bytes, arrival_s: float) -> Answer:
        await asyncio.sleep(begin_s + arrival_s - time.perf_counter())
        return await target.ask(request, begin_s + arrival_s)

    answers = await asyncio.gather(*(client(*pair) for pair in zip(requests, arrivals_s, strict=True)))
    return Run(tuple(answers), time.process_time() - begin_cpu_s)


def poisson_arrivals_s(num_requests: int, requests_per_s: float, rng: Random) -> list[float]:
    """Moments of a Poisson process, the first at 0: gaps are exponential with mean 1 / requests_per_s."""
    return list(accumulate((rng.expovariate(requests_per_s) for _ in range(num_requests - 1)), initial=0.0))
