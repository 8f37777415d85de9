"""Bodies of OpenAI requests as prompts and SamplingParams. Every field is known, known to have no effect, or refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.engine.chats import Chat
from hotloop.engine.inputs import Prompt
from hotloop.errors import InvalidRequestError
from hotloop.sampling_params import MAX_LOGPROBS, SamplingParams
from hotloop.server.fields import CHAT, FIELDS_OF, MAX_INT64, Endpoint
from hotloop.server.structure import STRUCTURED_OUTPUTS_NAMES, structured_outputs

_CHAT_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs")
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, of /v1/completions


@dataclass(frozen=True, slots=True)
class Body:
    """model: as the request named it. chat: a conversation; prompts: of completions, one answer set each.
    prompt_logprobs: whether they are shown by themselves, and not only as a part of an echo."""

    model: str | None
    params: SamplingParams
    chat: Chat | None
    prompts: Sequence[str | Sequence[int]]
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    prompt_logprobs: bool = False
    return_token_ids: bool = False
    timeout_s: float | None = None
    priority: int = 0
    cache_salt: str = ""


def prompts_of(body: Body) -> Sequence[Prompt]:
    """What to complete."""
    return body.prompts if body.chat is None else [body.chat]


def parse_body(
    endpoint: Endpoint,
    body: object,
    *,
    live: bool = True,
    default_max_tokens: int | None = None,
    max_tokens_limit: int | None = None,
) -> Body:
    """live: for a server; else for a batch file, which has no streams, deadlines and priorities. default_max_tokens: of a
    request that names none. max_tokens_limit: what more is cut down to.

    Raises: InvalidRequestError naming the field, its value and what is allowed.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError(f"the body is {body!r:.60}; it must be an object")
    given = {name: value for name, value in body.items() if value is not None}  # null is the default, whatever it is
    _check_fields(endpoint, given, live)
    sampling = {name: value for name, value in given.items() if FIELDS_OF[endpoint][name].kind == "sampling"}
    sampling["structured_outputs"] = structured_outputs(given)
    max_tokens = _max_tokens(endpoint, given, default_max_tokens, max_tokens_limit)
    options = _stream_options(given)
    include_usage = _typed(options, "include_usage", bool, False)
    common: dict[str, Any] = {
        "model": _typed(given, "model", str, None),
        "stream": _typed(given, "stream", bool, False),
        "include_usage": include_usage,
        "continuous_usage": include_usage and _typed(options, "continuous_usage_stats", bool, False),
        "return_token_ids": _typed(given, "return_token_ids", bool, False),
        "timeout_s": _timeout_s(given),
        "priority": _integer(given, "priority", -(2**31), 2**31 - 1) or 0,
        "cache_salt": _typed(given, "cache_salt", str, ""),
    }
    sampling |= {"max_tokens": max_tokens, "prompt_logprobs": given.get("prompt_logprobs")}
    common["prompt_logprobs"] = "prompt_logprobs" in given
    if endpoint == CHAT:
        params = SamplingParams(**sampling, logprobs=_chat_logprobs(given))
        if "messages" not in given:
            raise InvalidRequestError("messages is missing; give a list of messages")
        chat = Chat(given["messages"], **{name: given.get(name) for name in _CHAT_FIELDS})
        return Body(params=params, chat=chat, prompts=(), **common)
    echo = _typed(given, "echo", bool, False)
    if echo and sampling["prompt_logprobs"] is None:
        sampling["prompt_logprobs"] = given.get("logprobs")
    params = SamplingParams(**sampling, logprobs=given.get("logprobs"))
    if "prompt" not in given:
        raise InvalidRequestError("prompt is missing; give a text, token ids, or a list of them")
    return Body(params=params, chat=None, prompts=_prompts(given["prompt"]), echo=echo, **common)


def _check_fields(endpoint: Endpoint, given: Mapping[str, Any], live: bool) -> None:
    known = FIELDS_OF[endpoint]
    for name, value in given.items():
        field = known.get(name)
        if field is None:
            raise InvalidRequestError(f"unknown field {name!r:.60}{_suggestion(str(name)[:60], known)}")
        if field.kind == "fixed" and not any(value == v and type(value) is type(v) for v in field.values):
            raise InvalidRequestError(f"{name} is {value!r:.60}, which is not offered here; leave {name} out")
        if field.kind == "live" and not live and value is not False:
            raise InvalidRequestError(f"{name} is {value!r:.60}; only a server offers it: leave {name} out")


def _suggestion(name: str, known: Collection[str]) -> str:
    form = name.removeprefix("guided_")  # vLLM's names before structured_outputs
    if form in STRUCTURED_OUTPUTS_NAMES:
        return f"; it is {form!r} of structured_outputs"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _typed(given: Mapping[str, Any], name: str, kind: type[bool] | type[str], default: Any) -> Any:
    value = given.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise InvalidRequestError(
            f"{name} is {value!r:.60}; it must be {'a string' if kind is str else 'true or false'}"
        )
    return value


def _integer(given: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = given.get(name)
    if value is not None and not (type(value) is int and low <= value <= high):
        raise InvalidRequestError(f"{name} is {value!r:.60}; it must be an integer from {low} to {high}")
    return value


def _stream_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    options = given.get("stream_options", {})
    known = ("include_usage", "continuous_usage_stats", "include_obfuscation")
    if not isinstance(options, Mapping) or options.keys() - set(known):
        raise InvalidRequestError(f"stream_options is {options!r:.60}; it may hold {', '.join(known)}")
    if options and given.get("stream") is not True:
        raise InvalidRequestError("stream_options is given without stream: true; leave it out")
    if options.get("include_obfuscation"):
        raise InvalidRequestError("include_obfuscation is not offered here; leave it out")
    return options


def _timeout_s(given: Mapping[str, Any]) -> float | None:
    value = given.get("timeout_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InvalidRequestError(f"timeout_s is {value!r:.60}; it must be a number of seconds above 0")
    return float(min(value, MAX_INT64))


def _max_tokens(endpoint: Endpoint, given: Mapping[str, Any], default: int | None, limit: int | None) -> int | None:
    asked = [_integer(given, name, 1, MAX_INT64) for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(asked) == 2 and asked[0] != asked[1]:
        raise InvalidRequestError(f"max_completion_tokens is {asked[0]} and max_tokens {asked[1]}; give one of them")
    if asked:
        wanted = asked[0]
    elif default is not None or endpoint == CHAT:
        wanted = default
    else:
        wanted = _DEFAULT_COMPLETION_TOKENS
    return wanted if limit is None else limit if wanted is None else min(wanted, limit)


def _chat_logprobs(given: Mapping[str, Any]) -> Any:
    wanted = _typed(given, "logprobs", bool, False)
    if given.get("top_logprobs") and not wanted:
        raise InvalidRequestError(f"top_logprobs is {given['top_logprobs']!r:.60} without logprobs: true")
    num_top = _integer(given, "top_logprobs", 0, MAX_LOGPROBS) or 0
    return num_top if wanted else None


def _prompts(prompt: object) -> list[Any]:
    """One text or list of token ids, or several. What is wrong within a list is refused where it is tokenized."""
    if isinstance(prompt, list) and not (prompt and all(isinstance(item, int) for item in prompt)):
        prompts = prompt
    else:
        prompts = [prompt]
    if not prompts or not all(isinstance(item, str | list) for item in prompts):
        raise InvalidRequestError(f"prompt is {prompt!r:.60}; it must be a text, a list of token ids, or a list of such")
    return prompts
