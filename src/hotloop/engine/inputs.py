"""InputProcessor: what a user asks, as Requests. The client's side: it needs a tokenizer and a few numbers, no engine."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

from hotloop.engine.chats import MAX_LONG_CHARS, Chat, ChatRenderer, RenderedChat
from hotloop.engine.resume import Resume
from hotloop.errors import ContextLengthError, InvalidRequestError
from hotloop.request import Request, RequestId, Thinking
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.sampling_params import MAX_CHOICES, SamplingParams
from hotloop.text.message_parser import MessageForm
from hotloop.text.tokenizer import Tokenizer
from hotloop.text.words import Words

MAX_SALT_CHARS = 1000  # every choice takes it to the engine

# A text, token ids, {"prompt_token_ids": [...]}, or a conversation.
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any] | Chat

_SEED_BITS = 53  # any JSON reader holds such an integer exactly


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt on its way: its name, its text if it was one, and a request for each of its choices, choice 0 first.
    num_truncated_tokens: what truncate_prompt_tokens left out. message: what its answers are made of, if not of plain text.

    The requests' ids are not the name but unlike all before them: the engine may still be at work on one of that name that
    was given up just now.
    """

    name: str
    text: str | None
    requests: list[Request]
    num_truncated_tokens: int = 0
    message: MessageForm | None = None


class InputProcessor:
    """Turns prompts, conversations and resumed requests into Requests. Thread-safe.

    max_request_tokens: what a request without max_tokens may grow to, where the KV pool is smaller than the context.
    recommended: the model's sampling defaults. name: of the model, for messages. tool_format: see `ChatRenderer`. grammars: the
    engine's, if it is in this process.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_model_len: int,
        *,
        max_request_tokens: int | None = None,
        recommended: Mapping[str, Any],
        name: str,
        tool_format: str | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.max_request_tokens = max_model_len if max_request_tokens is None else max_request_tokens
        self.recommended = recommended
        self._words = Words(tokenizer)
        self._ids = count()
        self._chats = ChatRenderer(tokenizer, max_model_len, name=name, tool_format=tool_format)
        self._grammars = grammars or GrammarCompiler(lambda: tokenizer, makes_masks=False)

    def resolved(self, params: SamplingParams | None) -> SamplingParams:
        """What applies: the request's value, else the model's recommendation, else 1.0 / off."""
        if not isinstance(params, SamplingParams | None):
            raise InvalidRequestError(f"sampling_params is {params!r:.60}; it must be SamplingParams")
        return (params or SamplingParams()).with_defaults(self.recommended)

    def ask(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str = "",
        arrival_s: float | None = None,
    ) -> Ask:
        """The requests of one prompt, n of them. request_id: its name. arrival_s: time.perf_counter, None for now.

        Takes milliseconds for long prompts, and up to seconds where structured_outputs have to be compiled.
        Raises: InvalidRequestError.
        """
        arrival_s = time.perf_counter() if arrival_s is None else arrival_s
        _check_options(priority, timeout_s, cache_salt)
        params = self.resolved(params)
        chat = None
        truncates = params.truncate_prompt_tokens is not None
        if isinstance(prompt, Chat):
            chat = self._chats.render(prompt, truncates=truncates)
            params, prompt = chat.formed(params), {"prompt_token_ids": chat.token_ids}
        elif params.thinking_budget is not None:
            raise InvalidRequestError(f"thinking_budget is {params.thinking_budget}; it is for chats only: leave it out")
        self._check_structure(params)
        text, ids = self._prompt_token_ids(prompt, parse_special, truncates=truncates)
        ids, num_truncated = self._truncated(ids, params.truncate_prompt_tokens)
        seed = params.seed if params.seed is not None else secrets.randbits(_SEED_BITS)
        name, first = self._identify(request_id)
        thinking = None if chat is None else chat.thinking
        request = self._request(first, ids, params, seed, arrival_s, priority, timeout_s, cache_salt, thinking)
        choices = [
            replace(request, request_id=RequestId(f"{first}/{i}"), choice=i, parent_id=first, output_token_ids=[])
            for i in range(1, params.n)
        ]
        return Ask(name, text, [request, *choices], num_truncated, None if chat is None else chat.message)

    def resume(
        self,
        resume: Resume,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str = "",
    ) -> Ask:
        """The request that goes on where another was. Raises InvalidRequestError if that had already ended."""
        arrival_s = time.perf_counter()
        _check_options(priority, timeout_s, cache_salt)
        for what, number, end in (("seed", resume.seed, 2**64), ("choice", resume.choice, MAX_CHOICES)):
            if type(number) is not int or not -(2**63) <= number < end or (what == "choice" and number < 0):
                raise InvalidRequestError(f"{what} of the resumed request is {number!r:.60}; it must be what Resume.of gave")
        for what, ids in (("prompt_ids", resume.prompt_ids), ("output_ids", resume.output_ids)):
            if isinstance(ids, str | bytes) or not isinstance(ids, Sequence) or not _are_integers(ids):
                raise InvalidRequestError(f"{what} of the resumed request is {ids!r:.60}; it must be a list of integers")
        params = self.resolved(resume.params)
        self._check_structure(params)
        mu = resume.mirostat_mu
        if mu is not None and (type(mu) is not float or not math.isfinite(mu)):
            raise InvalidRequestError(f"mirostat_mu of the resumed request is {mu!r:.60}; it must be what Resume.of gave")
        if mu is None and params.mirostat and params.temperature and resume.output_ids:
            raise InvalidRequestError("the resumed request uses mirostat and has no mirostat_mu; take it from Resume.of")
        name, first = self._identify(request_id)
        request = self._request(
            first, list(resume.prompt_ids), params, resume.seed, arrival_s, priority, timeout_s, cache_salt, resume.thinking
        )
        request.choice, request.mirostat_mu = resume.choice, resume.mirostat_mu
        request.output_token_ids = output = list(resume.output_ids)
        if len(output) >= request.max_tokens or (output and output[-1] in request.stop_token_ids):
            raise InvalidRequestError(
                f"a request of {len(output)} output tokens (max_tokens {request.max_tokens}) has ended; nothing to resume"
            )
        return Ask(name, None, [request])

    def render(self, chat: Chat) -> RenderedChat:
        """The prompt of a conversation. Raises InvalidRequestError if there is no chat template or it refuses."""
        return self._chats.render(chat)

    def _check_structure(self, params: SamplingParams) -> None:
        """The engine compiles it again and must not be the one to find out."""
        if params.structured_outputs is not None:
            self._grammars.compile(params.structured_outputs)

    def _identify(self, request_id: str | None) -> tuple[str, RequestId]:
        """The name of a request, and the id of its first choice."""
        number = next(self._ids)
        if request_id is None:
            return f"request-{number}", RequestId(f"request-{number}")
        if not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id is {request_id!r:.60}; it must be a text")
        return request_id, RequestId(f"{request_id}~{number}")

    def _request(
        self,
        request_id: RequestId,
        ids: list[int],
        params: SamplingParams,
        seed: int,
        arrival_s: float,
        priority: int,
        timeout_s: float | None,
        cache_salt: str,
        thinking: Thinking | None,
    ) -> Request:
        """Choice 0 of a prompt, before its first step. params: resolved."""
        if params.max_tokens is None:
            max_tokens = self.max_request_tokens - len(ids)
        else:
            max_tokens = min(params.max_tokens, self.max_model_len - len(ids))
        ends = frozenset() if params.ignore_eos else self.tokenizer.eos_token_ids
        return Request(
            request_id=request_id,
            prompt_token_ids=ids,
            params=params,
            seed=seed,
            max_tokens=max(1, max_tokens),
            stop_token_ids=frozenset(params.stop_token_ids or ()) | ends,
            arrival_s=arrival_s,
            priority=priority,
            deadline_s=None if timeout_s is None else arrival_s + timeout_s,
            cache_salt=cache_salt,
            bad_word_ids=self._words.bad_words(params.bad_words or ()),
            dry_breakers=self._words.breakers(tuple(params.dry_sequence_breakers)) if params.dry_multiplier else (),
            thinking=thinking,
        )

    def _truncated(self, ids: list[int], limit: int | None) -> tuple[list[int], int]:
        """The last ``limit`` of the prompt's ids (-1: as many as leave room for a token of output), after the BOS if they
        begin with one; and how many were left out."""
        if limit is None:
            return ids, 0
        limit = self.max_model_len - 1 if limit == -1 else limit
        if len(ids) <= limit:
            return ids, 0
        bos = self.tokenizer.bos_token_id
        start = [bos] if bos is not None and ids[0] == bos else []
        return start + ids[len(ids) - limit + len(start) :], len(ids) - limit

    def _prompt_token_ids(
        self, prompt: Prompt, parse_special: bool, *, truncates: bool
    ) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            unknown = prompt.keys() - {"prompt", "prompt_token_ids"}
            if unknown or not prompt:
                raise InvalidRequestError(f"a prompt mapping has 'prompt' or 'prompt_token_ids', not {sorted(unknown)}")
            kind = list if "prompt_token_ids" in prompt else str
            prompt = prompt["prompt_token_ids" if kind is list else "prompt"]
            if isinstance(prompt, str) != (kind is str):
                raise InvalidRequestError(f"a prompt mapping holds {prompt!r:.60}, which is no {kind.__name__}")
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise InvalidRequestError(f"a prompt is a text or a list of token ids, not {prompt!r:.60}")
        if isinstance(prompt, str):
            least = self.tokenizer.min_num_tokens(prompt)
            if least >= self.max_model_len and not truncates:
                raise ContextLengthError(
                    f"the prompt has {len(prompt)} characters, at least {least} tokens, and the context length is "
                    f"{self.max_model_len}; shorten the prompt"
                )
            if len(prompt) > MAX_LONG_CHARS:
                raise InvalidRequestError(f"the prompt has {len(prompt)} characters; {MAX_LONG_CHARS} at most")
            ids = self.tokenizer.encode(prompt, parse_special=parse_special)
            if not ids:
                raise InvalidRequestError(
                    "the prompt is empty and this model has no BOS token to start from; give a text"
                )
            return prompt, ids
        if len(prompt) >= self.max_model_len and not truncates:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and the context length is {self.max_model_len}; "
                f"shorten the prompt or raise max_model_len"
            )
        ids = list(prompt)
        if not _are_integers(ids):
            bad = next(i for i in ids if not _are_integers([i]))
            raise InvalidRequestError(f"prompt_token_ids must be a list of integers and holds {bad!r:.60}")
        return None, ids


def _check_options(priority: int, timeout_s: float | None, cache_salt: str) -> None:
    """What the engine sorts by, compares or hashes for all of its requests. Raises InvalidRequestError."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidRequestError(f"priority is {priority!r:.60}; it must be an integer, lower runs first")
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or math.isnan(timeout_s)
    ):
        raise InvalidRequestError(f"timeout_s is {timeout_s!r:.60}; it must be a number of seconds, or None for no end")
    if not isinstance(cache_salt, str) or any("\ud800" <= c <= "\udfff" for c in cache_salt):
        raise InvalidRequestError(f"cache_salt is {cache_salt!r:.60}; it must be a text, without lone surrogates")
    if len(cache_salt) > MAX_SALT_CHARS:
        raise InvalidRequestError(f"cache_salt has {len(cache_salt)} characters; {MAX_SALT_CHARS} at most")


def _are_integers(ids: Iterable[object]) -> bool:
    return all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
