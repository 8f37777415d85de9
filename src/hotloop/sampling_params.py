"""SamplingParams: how one request is sampled, validated at construction. Names and meanings are vLLM's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from hotloop.errors import InvalidRequestError
from hotloop.structured_outputs import StructuredOutputsParams

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000  # of each: every choice gets a table of them
MAX_TOKEN_IDS = 1024  # in logit_bias, stop_token_ids and allowed_token_ids: every choice takes them to the engine
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_LOGIT_BIAS = 100.0
MAX_BAD_WORDS = 256
MAX_SEQUENCE_BREAKERS = 64
MAX_PROCESSORS = 16
MAX_WORD_CHARACTERS = 200  # of a bad word or a sequence breaker

_NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "mirostat_tau", "mirostat_eta", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
)  # fmt: skip
_INTEGERS = (
    "top_k", "seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "min_tokens", "n", "mirostat",
    "dry_allowed_length", "thinking_budget",
)  # fmt: skip
_OPTIONAL = frozenset({
    "temperature", "top_p", "min_p", "repetition_penalty", "top_k", "seed", "max_tokens", "logprobs",
    "prompt_logprobs", "truncate_prompt_tokens", "bad_words", "thinking_budget",
})  # fmt: skip
# Of the output's ids and a row of logits, or with the prompt's ids before them: the row to draw from.
LogitsProcessor: TypeAlias = Callable[..., Any]

_DECIMAL = re.compile(r"-?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request. Names and meanings are vLLM's, and llama.cpp's where vLLM has none; docs/sampling.md
    defines each exactly.

    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: (0, 1]. min_p: [0, 1], relative to the top probability.
    repetition_penalty: above 0, 1 is off; logits of tokens in the prompt or the output are divided by it (multiplied
    where they are negative). These five are None where the request leaves them open: the model's recommendation
    applies, else 1.0 / off.
    typical_p: (0, 1], 1 is off. top_n_sigma: so many standard deviations of the logits below the top one; 0 or -1 is off.
    xtc_probability, xtc_threshold: how often all tokens of at least this probability but the least likely of them are left
    out. mirostat: 2 takes the place of all these filters, 0 is off; mirostat_tau, mirostat_eta: the surprise in bits it aims
    at, and how fast.
    presence_penalty, frequency_penalty: [-2, 2], subtracted from the logits of tokens in the output, once and once per
    occurrence. dry_multiplier: 0 is off; dry_multiplier * dry_base^(length - dry_allowed_length) is subtracted from the
    logit of a token that would go on repeating a sequence of that length; no sequence reaches over dry_sequence_breakers.
    logit_bias: token id -> [-100, 100], added to the logit; an id may be written as a decimal string, as
    JSON has to; at most 1024. allowed_token_ids: nothing else is drawn; at most 1024. bad_words: texts whose tokens are
    not drawn in a row; at most 256. n: how many answers, at most 128; each has its own noise, the first is the answer of
    n = 1.
    seed: 64 bits; None draws a fresh one, which the output reports. max_tokens: None is all the room there is.
    min_tokens: no stop before so many tokens. stop: strings that end the text, at most 16 of at most 1000 characters.
    stop_token_ids: at most 1024. truncate_prompt_tokens: only the last ones of a longer prompt are used; -1: as many as fit
    the context. logprobs: of the drawn token and this many top ones per position; logprobs_mode: "raw" is before any
    processing, "processed" is of what the token was drawn from.
    prompt_logprobs: raw ones of the prompt's tokens but the first, and this many top ones per position.
    structured_outputs: the form that the whole answer must have. thinking_budget: of a chat whose answers may think, at most so
    many tokens of reasoning; then it is ended.
    logits_processors: at most 16 pure functions (output_token_ids, logits) -> logits, or (prompt_token_ids, output_token_ids,
    logits) -> logits, over float32 [vocab_size]; only where the engine is in this process.

    Raises: InvalidRequestError naming the field, its value and the allowed range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    truncate_prompt_tokens: int | None = None
    logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    logits_processors: Sequence[LogitsProcessor] | None = None
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, _checked_number(name, getattr(self, name)))
        for name in _INTEGERS:
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                _check_int(name, value)
                _check(-(2**63) <= value < 2 ** (64 if name == "seed" else 63), name, value, "a 64-bit integer")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _check(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            is_list = isinstance(value, Sequence | Set) and (name == "stop" or not isinstance(value, str))
            _check(value is None or is_list, name, value, "a list")
        num_ids = len(self.stop_token_ids or ())
        _check(num_ids <= MAX_TOKEN_IDS, "the length of stop_token_ids", num_ids, f"{MAX_TOKEN_IDS} at most")
        structured = self.structured_outputs
        _check(
            isinstance(structured, StructuredOutputsParams | None),
            "structured_outputs", structured, "StructuredOutputsParams",
        )  # fmt: skip
        self._check_ranges()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        for name, most in (("bad_words", MAX_BAD_WORDS), ("dry_sequence_breakers", MAX_SEQUENCE_BREAKERS)):
            if getattr(self, name) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, _checked_words(name, getattr(self, name), most))
        self._check_stops()
        if self.logits_processors is not None:
            object.__setattr__(self, "logits_processors", _checked_processors(self.logits_processors))
        if self.allowed_token_ids is not None:
            ids = self.allowed_token_ids
            is_list = isinstance(ids, Sequence | Set) and len(ids) > 0
            _check(is_list, "allowed_token_ids", ids, "a list of at least one token id")
            _check(len(ids) <= MAX_TOKEN_IDS, "the length of allowed_token_ids", len(ids), f"{MAX_TOKEN_IDS} at most")
            for token_id in ids:
                _check_int("allowed_token_ids", token_id)
            object.__setattr__(self, "allowed_token_ids", tuple(ids))
        if self.mirostat:
            self._check_alone_with_mirostat()

    def _check_ranges(self) -> None:
        for name, low, high in (
            ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2), ("min_p", 0, 1), ("n", 1, MAX_CHOICES),
            ("xtc_probability", 0, 1), ("xtc_threshold", 0, 1), ("mirostat_tau", 0, 100), ("mirostat_eta", 0, 1),
            ("dry_multiplier", 0, 1e6), ("dry_base", 1, 1e6), ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):  # fmt: skip
            value = getattr(self, name)
            _check(value is None or low <= value <= high, name, value, f"in [{low:g}, {high:g}]")
        for name in ("top_p", "typical_p"):
            value = getattr(self, name)
            _check(value is None or 0 < value <= 1, name, value, "in (0, 1]")
        _check(self.temperature is None or self.temperature >= 0, "temperature", self.temperature, "0 or more")
        _check(self.top_k is None or self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off) or a positive count")
        sigma = self.top_n_sigma
        _check(sigma >= 0 or sigma == -1, "top_n_sigma", sigma, "0 or -1 (off) or a positive number of deviations")
        _check(self.mirostat in (0, 2), "mirostat", self.mirostat, "0 (off) or 2")
        penalty = self.repetition_penalty
        _check(penalty is None or penalty > 0, "repetition_penalty", penalty, "above 0; 1 is off")
        length = self.dry_allowed_length
        _check(length >= 1, "dry_allowed_length", length, "1 or more")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _check(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        last = self.truncate_prompt_tokens
        _check(last is None or last >= 1 or last == -1, "truncate_prompt_tokens", last, "1 or more, or -1")
        budget = self.thinking_budget
        _check(budget is None or budget >= 0, "thinking_budget", budget, "0 or more tokens")
        mode = self.logprobs_mode
        _check(isinstance(mode, str) and mode in ("raw", "processed"), "logprobs_mode", mode, '"raw" or "processed"')

    def _check_stops(self) -> None:
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequestError(f"stop holds {stop!r:.60}; every stop string must be a non-empty string")
            if any("\ud800" <= c <= "\udfff" for c in stop):
                raise InvalidRequestError(f"stop holds {stop!r:.60} with a lone surrogate, which no text has")
            _check(len(stop) <= MAX_STOP_CHARS, "the length of a stop string", len(stop), f"{MAX_STOP_CHARS} at most")
        count = len(self.stop_strings)
        _check(count <= MAX_STOP_STRINGS, "the number of stop strings", count, f"{MAX_STOP_STRINGS} at most")
        for token_id in self.stop_token_ids or ():
            _check_int("stop_token_ids", token_id)

    def _check_alone_with_mirostat(self) -> None:
        for name, is_on in (
            ("top_k", (self.top_k or 0) > 0), ("top_p", (self.top_p or 1) < 1), ("min_p", (self.min_p or 0) > 0),
            ("typical_p", self.typical_p < 1), ("top_n_sigma", self.top_n_sigma > 0),
            ("xtc_probability", self.xtc_probability > 0),
        ):  # fmt: skip
            _check(not is_on, name, getattr(self, name), "left out with mirostat 2, which takes its place")

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
        if self.mirostat:
            recommended = {k: v for k, v in recommended.items() if k not in ("top_p", "top_k", "min_p")}
        names = {f.name for f in fields(self)} & (built_in.keys() | recommended.keys())
        values = {name: recommended.get(name, built_in.get(name)) for name in names if getattr(self, name) is None}
        return replace(self, **values) if values else self

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequestError if a token id lies outside the vocabulary."""
        for name in ("stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                _check(0 <= token_id < vocab_size, name, token_id, f"token ids from 0 to {vocab_size - 1}")
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


def _checked_words(name: str, words: Any, most: int) -> tuple[str, ...]:
    is_list = isinstance(words, Sequence | Set) and not isinstance(words, str | bytes)
    _check(is_list, name, words, "a list of strings")
    _check(len(words) <= most, f"the length of {name}", len(words), f"{most} at most")
    for word in words:
        if not isinstance(word, str) or not word or len(word) > MAX_WORD_CHARACTERS:
            raise InvalidRequestError(
                f"{name} holds {word!r:.60}; each must be a string of 1 to {MAX_WORD_CHARACTERS} characters"
            )
        if any("\ud800" <= c <= "\udfff" for c in word):
            raise InvalidRequestError(f"{name} holds {word!r:.60} with a lone surrogate, which no text has")
    return tuple(words)


def _checked_processors(processors: Any) -> tuple[LogitsProcessor, ...]:
    is_list = isinstance(processors, Sequence) and not isinstance(processors, str | bytes)
    _check(is_list, "logits_processors", processors, "a list of functions")
    _check(len(processors) <= MAX_PROCESSORS, "the length of logits_processors", len(processors), f"{MAX_PROCESSORS} at most")
    for processor in processors:
        if not callable(processor):
            raise InvalidRequestError(
                f"logits_processors holds {processor!r:.60}; each must be a function (output_token_ids, logits) -> logits"
            )
    return tuple(processors)


def _check(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} is {value!r:.60}; it must be {allowed}")


def _checked_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidRequestError(f"{name} is {value!r:.60}; it must be a finite number")
    return float(value)


def _check_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} is {value!r:.60}; it must be an integer")
