"""ServeSettings: how the server treats its clients. Affects who is served and when, never what an answer says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from hotloop.errors import InvalidRequestError

LogFormat = Literal["human", "json"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """model_names: what requests may call the model; the first is in every answer. api_keys: without any, nobody is asked for
    one. public_metrics: /metrics needs no key. default_max_tokens: of a request that names none; None is all the room there
    is. max_tokens_limit: no request gets more. max_queued_requests, max_queued_tokens: of all requests (choices count) that
    wait for the engine, and of their prompts and max_tokens; more are refused. max_requests_per_key: that one API key has in
    the engine; None is all of it. max_body_bytes, body_timeout_s: of a request's body. write_timeout_s: a reader that takes
    nothing for so long is dropped. drain_timeout_s: what is running may take so long after SIGTERM. watchdog_s: an engine
    that has work and completes no step for so long is started again.
    """

    model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    public_metrics: bool = False
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None
    max_queued_requests: int = 256
    max_queued_tokens: int = 1_000_000
    max_requests_per_key: int | None = None
    max_body_bytes: int = 16 * 2**20
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    watchdog_s: float = 60.0
    log_format: LogFormat = "human"
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name, low in (
            ("port", 0), ("default_max_tokens", 1), ("max_tokens_limit", 1), ("max_queued_requests", 1),
            ("max_queued_tokens", 1), ("max_requests_per_key", 1), ("max_body_bytes", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= low):
                raise InvalidRequestError(f"{name} is {value!r}; it must be an integer, {low} or more")
        if self.port > 65535:
            raise InvalidRequestError(f"port is {self.port}; it must be 65535 or less")
        if not (math.isfinite(self.drain_timeout_s) and self.drain_timeout_s >= 0):
            raise InvalidRequestError(
                f"drain_timeout_s is {self.drain_timeout_s!r}; it must be a number of seconds, 0 or more"
            )
        for name in ("body_timeout_s", "write_timeout_s", "watchdog_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequestError(f"{name} is {value!r}; it must be a number of seconds, more than 0")
        if not self.model_names or not all(self.model_names):
            raise InvalidRequestError("the model needs a name that requests can call it by")
        if any(not key for key in self.api_keys):
            raise InvalidRequestError("an API key is empty; give a text, or none at all")
