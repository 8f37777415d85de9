"""Clients of every kind, well and badly behaved, each of whose answers is checked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exchange import Exchange, get, post

from hotloop.bench.serving.prompts import WORDS, random_words

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

_TOO_MANY = 200  # failures: no need to go on


class WrongAnswerError(Exception):
    """An answer is not what it must be."""


@dataclass
class MixedLoad:
    """Clients of one server, and what they have seen so far. tokens: of complete answers."""

    port: int
    model: str
    rng: random.Random
    requests: Counter[str] = field(default_factory=Counter)  # by kind
    failures: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    _texts: dict[int, str] = field(default_factory=dict)  # short request -> hash of its answer

    def fail(self, what: str) -> None:
        if not self.failures[what]:
            print(f"FAILED: {what}", file=sys.stderr)
        self.failures[what] += 1

    async def client(self, until_s: float) -> None:
        """Requests one after the other, unless most of what it sees goes wrong."""
        kinds = [kind for kind, weight in KINDS.items() for _ in range(weight)]
        while time.monotonic() < until_s and self.failures.total() < _TOO_MANY:
            kind = self.rng.choice(kinds)
            try:
                await asyncio.wait_for(KIND_RUNS[kind](self), timeout=300)
            except Exception as error:  # whatever it is, the answer was not what it must be
                self.fail(f"{kind}: {type(error).__name__} {error}")
            self.requests[kind] += 1

    def prompt(self, num_words: int) -> str:
        return random_words(num_words, self.rng)

    async def short(self) -> None:
        """One of few requests, so that each comes many times: its text must be the same every time."""
        number = self.rng.randrange(40)
        body = {
            "model": self.model, "messages": [{"role": "user", "content": f"{WORDS[number]} {number}"}],
            "max_tokens": 8 + number % 25, "seed": number, "temperature": 0.8 * (number % 3 > 0),
        }  # fmt: skip
        if number % 4 == 0:
            answer = await self.whole(CHAT, body)
            text = answer["choices"][0]["message"]["content"]
        else:
            text = await self.stream(CHAT, body)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self._texts.setdefault(number, digest) != digest:
            raise WrongAnswerError(f"request {number} has another text than before")

    async def long(self) -> None:
        body = {"prompt": self.prompt(self.rng.randrange(100, 500)), "max_tokens": 150, "ignore_eos": True}
        await self.stream(COMPLETIONS, body)

    async def choices(self) -> None:
        """Several prompts and choices, logprobs, a stop string, a penalty."""
        body = {
            "prompt": [self.prompt(12), self.prompt(30)], "n": 2, "max_tokens": 24, "logprobs": 2, "stop": ["\n\n"],
            "presence_penalty": 0.5, "temperature": 0.9,
        }  # fmt: skip
        await self.stream(COMPLETIONS, body, num_choices=4)

    async def slow(self) -> None:
        """A reader of a few kilobytes per second, with logprobs, so that buffers fill up."""
        body = {"prompt": self.prompt(20), "max_tokens": 80, "logprobs": 5, "ignore_eos": True}
        await self.stream(COMPLETIONS, body, pause_s=0.1, buffer_bytes=2048)

    async def abort(self) -> None:
        """Leaves after some events, sometimes while it waits for the first."""
        request = self.body({"prompt": self.prompt(self.rng.randrange(5, 300)), "max_tokens": 400, "stream": True})
        num_events = self.rng.choice([0, 0, 1, 5, 30])
        try:
            async with asyncio.timeout(self.rng.uniform(0.01, 3)):
                async with Exchange(self.port, post(COMPLETIONS, request)) as exchange:
                    if exchange.status != 200:
                        raise WrongAnswerError(f"status {exchange.status}: {await exchange.body()!r:.200}")
                    async for _ in exchange.events():
                        num_events -= 1
                        if num_events <= 0:
                            break
                    if self.rng.random() < 0.5:
                        exchange.reset()
        except TimeoutError:
            pass

    async def deadline(self) -> None:
        """More than its time allows: refused, or ended by an error event."""
        body = self.body({"prompt": self.prompt(50), "max_tokens": 1000, "timeout_s": 0.3, "ignore_eos": True})
        async with Exchange(self.port, post(COMPLETIONS, body | {"stream": self.rng.random() < 0.5})) as exchange:
            if exchange.status != 200:
                if exchange.status not in (408, 429, 504):
                    raise WrongAnswerError(f"status {exchange.status}: {await exchange.body()!r:.200}")
                await exchange.body()
                return
            events = [event async for event in exchange.events()]
        if not any(event is not None and "error" in event for event in events):
            raise WrongAnswerError("a stream past its deadline ended without an error")

    async def malformed(self) -> None:
        """Answered with a 4xx and a body of OpenAI's shape, or by closing the connection if it is no HTTP."""
        name, request = self.rng.choice(MALFORMED)
        try:
            async with Exchange(self.port, request) as exchange:
                body = await exchange.body()
        except ConnectionError:
            if not name.startswith("no http"):
                raise
            return
        if not 400 <= exchange.status < 500:
            raise WrongAnswerError(f"{name}: status {exchange.status}: {body!r:.200}")
        if name.startswith("no http"):
            return
        error = json.loads(body)["error"]
        if not error["message"] or len(body) > 65536:
            raise WrongAnswerError(f"{name}: {body!r:.200}")

    # ---- answers ----------------------------------------------------------------------------------------------------

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "seed": self.rng.randrange(2**31), **fields}

    async def whole(self, path: str, fields: Mapping[str, Any]) -> Any:
        async with Exchange(self.port, post(path, self.body(fields))) as exchange:
            answer = json.loads(await exchange.body())
        if exchange.status != 200:
            raise WrongAnswerError(f"status {exchange.status}: {answer!r:.200}")
        if answer["usage"]["completion_tokens"] < 1 or not answer["choices"][0]["finish_reason"]:
            raise WrongAnswerError(f"no tokens or no finish_reason: {answer!r:.200}")
        self.tokens += answer["usage"]["completion_tokens"]
        return answer

    async def stream(
        self,
        path: str,
        fields: Mapping[str, Any],
        *,
        num_choices: int = 1,
        pause_s: float = 0.0,
        buffer_bytes: int | None = None,
    ) -> str:
        """The text of choice 0; a pause after every event. Raises WrongAnswerError if a part of its end is missing."""
        body = self.body(fields) | {"stream": True, "stream_options": {"include_usage": True}}
        text, reasons, usage, is_done = "", Counter[int](), None, False
        async with Exchange(self.port, post(path, body), buffer_bytes) as exchange:
            if exchange.status != 200:
                raise WrongAnswerError(f"status {exchange.status}: {await exchange.body()!r:.200}")
            async for event in exchange.events():
                if is_done:
                    raise WrongAnswerError("an event after [DONE]")
                if event is None:
                    is_done = True
                    continue
                if "error" in event:
                    raise WrongAnswerError(f"an error event: {event['error']!r:.200}")
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    reasons[choice["index"]] += choice["finish_reason"] is not None
                    if choice["index"] == 0:
                        text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                if pause_s:
                    await asyncio.sleep(pause_s)
        if not is_done or reasons != Counter(dict.fromkeys(range(num_choices), 1)) or usage is None:
            raise WrongAnswerError(
                f"an end without all its parts: done {is_done}, finish reasons {reasons}, usage {usage}"
            )
        self.tokens += usage["completion_tokens"]
        return text


BAD_FIELDS: list[dict[str, Any]] = [
    {"temperature": "hot"}, {"temperature": -1}, {"top_p": 2}, {"n": 0}, {"max_tokens": -1}, {"prompt": {}},
    {"prompt": [[10**9]]}, {"nonsense": 1}, {"model": "nobody"}, {"stop": 5}, {"logit_bias": {"x": 1}},
]  # fmt: skip
MALFORMED: list[tuple[str, bytes]] = [
    *((f"body {body!r:.20}", post(CHAT, body)) for body in (b"", b"[]", b"null", b"123", b'"str"', b'{"messages": [')),
    ("media type", post(CHAT, {"messages": []}, Content_Type="text/plain")),
    *((f"field {bad!r:.30}", post(COMPLETIONS, {"prompt": "x", "max_tokens": 4, **bad})) for bad in BAD_FIELDS),
    ("messages", post(CHAT, {"messages": "hello"})),
    ("many messages", post(CHAT, {"messages": [7] * 10_000})),
    ("not a number", post(COMPLETIONS, b'{"prompt": "x", "temperature": NaN}')),
    ("long prompt", post(COMPLETIONS, {"prompt": "word " * 200_000})),
    ("large body", post(COMPLETIONS, {}, Content_Length=str(10**9))),
    ("path", get("/v1/nothing")),
    ("method", get(CHAT)),
    ("no http: bytes", bytes(range(256)) + b"\r\n\r\n"),
]  # fmt: skip
KINDS = {"short": 8, "long": 2, "choices": 2, "slow": 2, "abort": 4, "deadline": 1, "malformed": 4}  # weights
KIND_RUNS: dict[str, Callable[[MixedLoad], Awaitable[None]]] = {kind: getattr(MixedLoad, kind) for kind in KINDS}
