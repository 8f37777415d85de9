"""A request and what comes out of it: plain data, in vLLM's shapes where users meet it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NewType

from hotloop.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)
FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True)
class Request:
    """The engine's state of one request. params are resolved: no None but max_tokens and logprobs."""

    request_id: RequestId
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int  # clamped to the room left in the context
    stop_token_ids: frozenset[int]
    arrival_s: float = 0.0  # time.perf_counter
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # tokens whose K/V is stored

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Tokens at positions [begin, end) of prompt + output."""
        num_prompt = len(self.prompt_token_ids)
        return (
            self.prompt_token_ids[begin:end]
            + self.output_token_ids[max(0, begin - num_prompt) : max(0, end - num_prompt)]
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw logprobs of one drawn token: its own, its rank (1 is the top), and the top ones, best first."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """What one step adds to a request: ids out of the core, before any text."""

    request_id: RequestId
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """vLLM's shape of a logprob entry."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request's answer so far. ``timings`` follows telemetry/schema; ``seed`` replays the answer."""

    request_id: RequestId
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    seed: int
    timings: dict[str, float | int] | None = None
