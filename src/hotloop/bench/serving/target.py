"""The endpoint under load: which model, which request fields it takes, how long its prompts come out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from hotloop.bench.serving.answers import Answer, read_answer
from hotloop.bench.serving.connection import Address, exchange
from hotloop.bench.serving.prompts import ONE_PER_WORD, TokenCount, random_words
from hotloop.errors import HotloopError

Endpoint = Literal["completions", "chat"]
_PATHS: Mapping[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}

# Ways to ask for answers of full length and for usage, the most wanted first; a server may refuse fields it does not know.
_LENGTH_FIELDS: tuple[str | None, ...] = ("ignore_eos", "min_tokens", None)
_REFUSED = (400, 422)


@dataclass(frozen=True, slots=True)
class Target:
    """length_field: what keeps answers from ending early, if anything does. asks_usage: of streams. extra: fields of every
    body, over all others."""

    address: Address
    endpoint: Endpoint
    model: str
    api_key: str | None = None
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    length_field: str | None = "ignore_eos"
    asks_usage: bool = True
    token_count: TokenCount = ONE_PER_WORD

    def request(self, prompt: str, max_tokens: int) -> bytes:
        """The bytes of a streamed, greedy request."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.length_field == "ignore_eos":
            body["ignore_eos"] = True
        elif self.length_field == "min_tokens":
            body["min_tokens"] = max_tokens
        if self.asks_usage:
            body["stream_options"] = {"include_usage": True}
        text = json.dumps({**body, **self.extra}).encode()
        return self.address.request("POST", _PATHS[self.endpoint], text, self.api_key)

    def random_request(self, prompt_tokens: int, max_tokens: int, rng: Random) -> bytes:
        """A request whose prompt has about ``prompt_tokens`` tokens and no beginning in common with another."""
        return self.request(random_words(self.token_count.words(prompt_tokens), rng), max_tokens)

    async def ask(self, request: bytes, sent_s: float | None = None) -> Answer:
        """sent_s: the moment from which times count; None for now."""
        if sent_s is None:
            sent_s = time.perf_counter()
        return read_answer(sent_s, await exchange(self.address, request, self.timeout_s))


async def find_target(
    address: Address,
    endpoint: Endpoint,
    model: str | None,
    api_key: str | None,
    timeout_s: float,
    extra: Mapping[str, Any],
    rng: Random,
) -> Target:
    """Ask the server what it serves and try which fields it takes.

    Raises: HotloopError with the server's words if no request is answered.
    """
    target = Target(
        address, endpoint, model or await _first_model(address, api_key, timeout_s), api_key, timeout_s, extra
    )
    target, few = await _accepted(target, random_words(8, rng))
    many = await target.ask(target.request(random_words(72, rng), 1))
    if few.prompt_tokens is None or many.prompt_tokens is None:
        return target
    return replace(target, token_count=TokenCount.fit((8, few.prompt_tokens), (72, many.prompt_tokens)))


async def _accepted(target: Target, prompt: str) -> tuple[Target, Answer]:
    """The target with the most fields that it takes, and its answer."""
    for length_field, asks_usage in (*((name, True) for name in _LENGTH_FIELDS), (None, False)):
        target = replace(target, length_field=length_field, asks_usage=asks_usage)
        answer = await target.ask(target.request(prompt, 1))
        if answer.error is None or answer.status not in _REFUSED:
            break
    if answer.error is not None:
        raise HotloopError(answer.error)
    return target, answer


async def _first_model(address: Address, api_key: str | None, timeout_s: float) -> str:
    result = await exchange(address, address.request("GET", "/models", b"", api_key), timeout_s)
    if result.failure is not None:
        raise HotloopError(result.failure)
    try:
        return str(json.loads(result.body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise HotloopError(
            f"GET {address.path}/models answers HTTP {result.status} without a model; name one with --model"
        ) from None
