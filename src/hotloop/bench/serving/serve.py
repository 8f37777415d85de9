"""`hotloop bench serve URL`: one run under load."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import uvloop

from hotloop.bench.options import Report
from hotloop.bench.serving.connection import Address
from hotloop.bench.serving.figures import NO_LIMITS, Limits, definitions, figures, table
from hotloop.bench.serving.load import Run, poisson_arrivals_s, run_closed, run_open
from hotloop.bench.serving.prompts import Lengths
from hotloop.bench.serving.target import Endpoint, Target, find_target
from hotloop.errors import InvalidRequestError

_TOKENS = Lengths(128, 128)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """concurrency: requests in flight, unless requests_per_s says how they arrive. num_requests, num_warmup: None for 8
    and 1 times the concurrency. seed: of prompts, lengths and arrivals; None for a fresh one.

    Raises: InvalidRequestError naming the option.
    """

    url: str
    model: str | None = None
    endpoint: Endpoint = "completions"
    concurrency: int = 16
    requests_per_s: float | None = None
    num_requests: int | None = None
    num_warmup: int | None = None
    prompt_tokens: Lengths = _TOKENS
    output_tokens: Lengths = _TOKENS
    limits: Limits = NO_LIMITS
    seed: int | None = None
    timeout_s: float = 600.0
    api_key: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, low in (
            ("--concurrency", self.concurrency, 1), ("--requests", self.num_requests, 1), ("--warmup", self.num_warmup, 0)
        ):  # fmt: skip
            if value is not None and value < low:
                raise InvalidRequestError(f"{name} is {value}; it must be at least {low}")
        for name, seconds in (
            ("--rate", self.requests_per_s), ("--timeout", self.timeout_s), ("--ttft-limit", self.limits.ttft_s),
            ("--tpot-limit", self.limits.tpot_s),
        ):  # fmt: skip
            if seconds is not None and not 0 < seconds < float("inf"):
                raise InvalidRequestError(f"{name} is {seconds}; it must be more than 0")


async def bench_serve(options: ServeOptions, report: Report) -> dict[str, Any]:
    """The JSON object (schema.toml, bench_serve).

    Raises: HotloopError if the server answers no request.
    """
    seed = secrets.randbits(32) if options.seed is None else options.seed
    rng = Random(seed)
    address = Address.parse(options.url)
    target = await find_target(
        address, options.endpoint, options.model, options.api_key, options.timeout_s, options.extra, rng
    )
    num_requests = 8 * options.concurrency if options.num_requests is None else options.num_requests
    num_warmup = options.concurrency if options.num_warmup is None else options.num_warmup
    warmup, requests = (_requests(target, options, number, rng) for number in (num_warmup, num_requests))
    arrivals = (
        f"{options.concurrency} at a time"
        if options.requests_per_s is None
        else f"{options.requests_per_s:g} per second"
    )
    report(
        f"{options.url} {target.model}: {num_requests} {options.endpoint} requests, {arrivals}, after {num_warmup} to warm "
        f"up; prompts of {options.prompt_tokens} tokens, answers of {options.output_tokens}, "
        f"kept up by {target.length_field or 'nothing'}; seed {seed}"
    )
    await run_closed(target, warmup, options.concurrency)
    run = await _run(target, requests, options, rng)
    result = {
        "bench": "serve",
        "url": options.url,
        "model": target.model,
        "endpoint": options.endpoint,
        "concurrency": None if options.requests_per_s is not None else options.concurrency,
        "rate_requests_per_s": options.requests_per_s,
        "num_requests": num_requests,
        "num_warmup": num_warmup,
        "seed": seed,
        "length_field": target.length_field,
        "ttft_limit_s": options.limits.ttft_s,
        "tpot_limit_s": options.limits.tpot_s,
        **figures(run, options.limits),
    }
    for line in [*table(result), *definitions()]:
        report(line)
    return result


def bench_serve_blocking(options: ServeOptions, report: Report) -> dict[str, Any]:
    """`bench_serve` in an event loop of its own, one that takes little of the processor that the server may share."""
    return uvloop.run(bench_serve(options, report))


async def _run(target: Target, requests: list[bytes], options: ServeOptions, rng: Random) -> Run:
    if options.requests_per_s is None:
        return await run_closed(target, requests, options.concurrency)
    return await run_open(target, requests, poisson_arrivals_s(len(requests), options.requests_per_s, rng))


def _requests(target: Target, options: ServeOptions, number: int, rng: Random) -> list[bytes]:
    return [
        target.random_request(options.prompt_tokens.draw(rng), options.output_tokens.draw(rng), rng)
        for _ in range(number)
    ]
