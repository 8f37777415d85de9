"""SamplingParams: how one request is sampled, validated at construction. Names and meanings are vLLM's."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hotloop.errors import InvalidRequestError

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000  # of each: every choice gets a table of them
MAX_TOKEN_IDS = 1024  # in logit_bias and in stop_token_ids: every choice takes them to the engine
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_LOGIT_BIAS = 100.0

_DECIMAL = re.compile(r"-?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: (0, 1]. min_p: [0, 1], relative to the top probability.
    repetition_penalty: above 0, 1 is off; logits of tokens in the prompt or the output are divided by it (multiplied
    where they are negative). These five are None where the request leaves them open: the model's recommendation
    applies, else 1.0 / off.
    presence_penalty, frequency_penalty: [-2, 2], subtracted from the logits of tokens in the output, once and once per
    occurrence. logit_bias: token id -> [-100, 100], added to the logit; an id may be written as a decimal string, as
    JSON has to; at most 1024. n: how many answers, at most 128; each has its own noise, the first is the answer of n = 1.
    seed: 64 bits; None draws a fresh one, which the output reports. max_tokens: None is all the room there is.
    min_tokens: no stop before so many tokens. stop: strings that end the text, at most 16 of at most 1000 characters.
    stop_token_ids: at most 1024. logprobs: raw logprobs of the drawn token
    and this many top ones per position.

    Raises: InvalidRequestError naming the field, its value and the allowed range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _checked_number(name, getattr(self, name)))
        for name in ("top_k", "seed", "max_tokens", "logprobs", "min_tokens", "n"):
            value = getattr(self, name)
            if value is not None or name in ("min_tokens", "n"):
                _check_int(name, value)
                _check(-(2**63) <= value < 2**64, name, value, "a 64-bit integer")
        for name in ("presence_penalty", "frequency_penalty"):
            object.__setattr__(self, name, _checked_number(name, getattr(self, name)))
            _check(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "in [-2, 2]")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _check(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        for name, no_list in (("stop", Mapping), ("stop_token_ids", Mapping | str)):
            value = getattr(self, name)
            is_list = isinstance(value, Collection) and not isinstance(value, no_list)
            _check(value is None or is_list, name, value, "a list")
        num_ids = len(self.stop_token_ids or ())
        _check(num_ids <= MAX_TOKEN_IDS, "the length of stop_token_ids", num_ids, f"{MAX_TOKEN_IDS} at most")
        _check(self.temperature is None or self.temperature >= 0, "temperature", self.temperature, "0 or more")
        _check(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _check(self.min_p is None or 0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _check(self.top_k is None or self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off) or a positive count")
        penalty = self.repetition_penalty
        _check(penalty is None or penalty > 0, "repetition_penalty", penalty, "above 0; 1 is off")
        _check(1 <= self.n <= MAX_CHOICES, "n", self.n, f"1 to {MAX_CHOICES}")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _check(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            "logprobs", self.logprobs, f"0 to {MAX_LOGPROBS}",
        )  # fmt: skip
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequestError(f"stop holds {stop!r}; every stop string must be a non-empty string")
            if any("\ud800" <= c <= "\udfff" for c in stop):
                raise InvalidRequestError(f"stop holds {stop!r} with a lone surrogate, which no text has")
            _check(len(stop) <= MAX_STOP_CHARS, "the length of a stop string", len(stop), f"{MAX_STOP_CHARS} at most")
        _check(
            len(self.stop_strings) <= MAX_STOP_STRINGS,
            "stop",
            len(self.stop_strings),
            f"{MAX_STOP_STRINGS} strings at most",
        )
        for token_id in self.stop_token_ids or ():
            _check_int("stop_token_ids", token_id)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def with_defaults(self, recommended: Mapping[str, Any]) -> SamplingParams:
        """What applies: the request's value, else the model's recommendation, else 1.0 / off."""
        built_in: dict[str, Any] = {
            "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        }  # fmt: skip
        names = {f.name for f in fields(self)} & (built_in.keys() | recommended.keys())
        values = {name: recommended.get(name, built_in.get(name)) for name in names if getattr(self, name) is None}
        return replace(self, **values) if values else self

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequestError if a token id lies outside the vocabulary."""
        for token_id in self.stop_token_ids or ():
            _check(0 <= token_id < vocab_size, "stop_token_ids", token_id, f"token ids from 0 to {vocab_size - 1}")
        for token_id in self.logit_bias or ():
            allowed = f"in the vocabulary, 0 to {vocab_size - 1}"
            _check(0 <= token_id < vocab_size, "a token id of logit_bias", token_id, allowed)


def _checked_bias(bias: Mapping[Any, Any]) -> dict[int, float]:
    """A copy with integer keys."""
    _check(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
    _check(len(bias) <= MAX_TOKEN_IDS, "the length of logit_bias", len(bias), f"{MAX_TOKEN_IDS} at most")
    checked = {}
    for key, value in bias.items():
        token_id = int(key) if isinstance(key, str) and _DECIMAL.fullmatch(key) else key
        _check_int("a token id of logit_bias", token_id)
        _check(token_id not in checked, "a token id of logit_bias", key, "given only once")
        checked[token_id] = _checked_number(f"logit_bias of token {token_id}", value)
        allowed = f"in [-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]"
        _check(abs(value) <= MAX_LOGIT_BIAS, f"logit_bias of token {token_id}", value, allowed)
    return checked


def _check(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} is {value!r}; it must be {allowed}")


def _checked_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidRequestError(f"{name} is {value!r}; it must be a finite number")
    return float(value)


def _check_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} is {value!r}; it must be an integer")
