"""Bodies of OpenAI requests as prompts and SamplingParams. Every field is known, known to have no effect, or refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.errors import InvalidRequestError
from hotloop.sampling_params import SamplingParams

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
ENDPOINTS: tuple[Endpoint, ...] = ("/v1/chat/completions", "/v1/completions")

# Fields that become a SamplingParams field of the same name.
_SAMPLING = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
    "n", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
})  # fmt: skip
_IMPLEMENTED: Mapping[Endpoint, frozenset[str]] = {
    "/v1/chat/completions": _SAMPLING
    | {"model", "messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"},
    "/v1/completions": _SAMPLING | {"model", "prompt", "max_tokens", "logprobs"},
}
# They say something about the caller or about storing, nothing about the answer.
_WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "verbosity",
})  # fmt: skip
# Values that ask for what happens anyway; any other value of these is refused.
_HARMLESS: Mapping[str, Sequence[Any]] = {
    "stream": [False],
    "stream_options": [],
    "echo": [False],
    "best_of": [1],
    "suffix": [""],
    "response_format": [{"type": "text"}],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "parallel_tool_calls": [True, False],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
    "audio": [],
    "prediction": [],
    "reasoning_effort": [],
    "web_search_options": [],
}


@dataclass(frozen=True, slots=True)
class Body:
    """model: as the request named it. messages: of a conversation; prompts: of completions, one answer set each."""

    model: str | None
    params: SamplingParams
    messages: Sequence[Mapping[str, Any]] | None
    prompts: Sequence[str | Sequence[int]]


def parse_body(endpoint: Endpoint, body: object) -> Body:
    """Raises InvalidRequestError naming the field, its value and what is allowed."""
    if not isinstance(body, Mapping):
        raise InvalidRequestError(f"the body is {body!r:.60}; it must be an object")
    given = {name: value for name, value in body.items() if value is not None}  # null is the default, whatever it is
    _check_fields(endpoint, given)
    model = given.get("model")
    if not isinstance(model, str | None):
        raise InvalidRequestError(f"model is {model!r:.60}; it must be a string")
    values = {name: given[name] for name in _SAMPLING & given.keys()}
    if endpoint == "/v1/chat/completions":
        values |= {"max_tokens": _max_tokens(given), "logprobs": _chat_logprobs(given)}
        if "messages" not in given:
            raise InvalidRequestError("messages is missing; give a list of messages")
        return Body(model, SamplingParams(**values), given["messages"], ())
    values |= {"max_tokens": given.get("max_tokens", 16), "logprobs": given.get("logprobs")}
    if "prompt" not in given:
        raise InvalidRequestError("prompt is missing; give a text, token ids, or a list of them")
    return Body(model, SamplingParams(**values), None, _prompts(given["prompt"]))


def _check_fields(endpoint: Endpoint, given: Mapping[str, Any]) -> None:
    known = _IMPLEMENTED[endpoint] | _WITHOUT_EFFECT | _HARMLESS.keys()
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), sorted(known), n=1)
            raise InvalidRequestError(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if name in _HARMLESS and value not in _HARMLESS[name]:
            raise InvalidRequestError(f"{name} is {value!r:.60}, which is not offered here; leave {name} out")


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    both = [given[name] for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(both) == 2 and both[0] != both[1]:
        raise InvalidRequestError(f"max_completion_tokens is {both[0]!r} and max_tokens {both[1]!r}; give one of them")
    return both[0] if both else None


def _chat_logprobs(given: Mapping[str, Any]) -> Any:
    wanted = given.get("logprobs", False)
    if not isinstance(wanted, bool):
        raise InvalidRequestError(f"logprobs is {wanted!r:.60}; it must be true or false (how many: top_logprobs)")
    if "top_logprobs" in given and not wanted:
        raise InvalidRequestError(f"top_logprobs is {given['top_logprobs']!r:.60} without logprobs: true")
    return given.get("top_logprobs", 0) if wanted else None


def _prompts(prompt: object) -> list[Any]:
    """One text or list of token ids, or several. What else it may be is refused where it is tokenized."""
    if isinstance(prompt, list) and not (prompt and all(isinstance(item, int) for item in prompt)):
        if not prompt:
            raise InvalidRequestError("prompt is []; give at least one text or token id")
        return prompt
    return [prompt]
