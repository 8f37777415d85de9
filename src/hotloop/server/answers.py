"""From a request to /v1/completions or /v1/chat/completions to its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hotloop.engine.inputs import Ask
from hotloop.errors import EngineDeadError, HotloopError, InvalidRequestError
from hotloop.request import RequestOutput
from hotloop.sampling_params import MAX_CHOICES
from hotloop.server.auth import ANYBODY
from hotloop.server.bodies import Body, parse_body, prompts_of
from hotloop.server.errors import RefusedError, refusal
from hotloop.server.event_stream import EventStream, while_connected
from hotloop.server.fields import CHAT, Endpoint
from hotloop.server.json_body import understood
from hotloop.server.responses import Head, chat_response, completion_response
from hotloop.server.service import Service
from hotloop.server.stream import ChatShape, ChunkEncoder, CompletionShape, error_end
from hotloop.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_MAX_PROMPT_ENTRIES = 1 << 21  # some 60 MB of JSON
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is understood. key: whose it is. log: fields of its line in the log."""

    head: Head
    body: Body
    asks: Sequence[Ask]
    key: str
    log: dict[str, Any]


async def answer(service: Service, endpoint: Endpoint, request: Request) -> Response:
    """Raises: HotloopError where there is no answer to begin with."""
    arrival_s = time.perf_counter()
    id = f"{'chatcmpl' if endpoint == CHAT else 'cmpl'}-{uuid4().hex}"
    key = request.scope.get("hotloop.key", ANYBODY)
    log = request.scope.get("hotloop.log", {})
    log["id"] = _request_id(request, id)
    try:
        job = await understood(request, service.tokenizing, partial(_job, service, endpoint, id, key, log, arrival_s))
    except HotloopError:
        service.metrics.rejected("invalid")
        raise
    headers = {"x-request-id": log["id"]}
    if job.body.stream:
        return EventStream(_events(service, job), headers)
    whole = await while_connected(request.receive, _whole(service, job))
    return Response(whole, 200, headers, "application/json")


def _request_id(request: Request, own: str) -> str:
    """What the client calls the request, where it does so in plain characters."""
    named = request.headers.get("x-request-id", "")
    return named if _REQUEST_ID.fullmatch(named) else own


def _job(
    service: Service, endpoint: Endpoint, id: str, key: str, log: dict[str, Any], arrival_s: float, value: object
) -> Job:
    """value: of the request's body."""
    settings = service.settings
    body = parse_body(
        endpoint, value, default_max_tokens=settings.default_max_tokens,
        max_tokens_limit=settings.max_tokens_limit,
    )  # fmt: skip
    check_model(service, body.model)
    most = max(settings.max_queued_requests, MAX_CHOICES)
    num_choices = max(1, len(body.prompts)) * body.params.n
    if num_choices > most:
        raise InvalidRequestError(f"prompts times n are {num_choices} choices; {most} at most")
    asks = [
        service.llm.inputs.ask(
            prompt, body.params, request_id=f"{id}-{i}", arrival_s=arrival_s, priority=body.priority,
            timeout_s=body.timeout_s, cache_salt=body.cache_salt,
        )
        for i, prompt in enumerate(prompts_of(body))
    ]  # fmt: skip
    _check_prompt_entries(body, asks)
    try:
        service.llm.check(asks)
    except EngineDeadError as error:
        raise RefusedError(str(error), 503, "engine_dead") from None
    log["stream"] = body.stream
    if settings.log_prompts:
        log["prompts"] = [service.llm.tokenizer.decode(ask.requests[0].prompt_token_ids, skip_special=False) for ask in asks]
    cap = max(ask.requests[0].max_tokens for ask in asks)
    head = Head(id, int(time.time()), service.model_name, service.fingerprint, cap)
    return Job(head, body, asks, key, log)


def _check_prompt_entries(body: Body, asks: Sequence[Ask]) -> None:
    """Raises: InvalidRequestError if the logprobs of the prompts, which are in every choice, would be too much of an answer."""
    if body.params.prompt_logprobs is None:
        return
    num_copies = 1 if body.chat is not None else body.params.n
    num_tokens = sum(len(ask.requests[0].prompt_token_ids) for ask in asks)
    num_entries = num_tokens * (1 + body.params.prompt_logprobs) * num_copies
    if num_entries > _MAX_PROMPT_ENTRIES:
        raise InvalidRequestError(
            f"the answer would have {num_entries} logprobs of the prompt ({num_tokens} tokens, each with "
            f"{body.params.prompt_logprobs} others, in {num_copies} choices); {_MAX_PROMPT_ENTRIES} at most: lower n or the "
            f"number of logprobs"
        )


def check_model(service: Service, model: str | None) -> None:
    """Raises: RefusedError if another model is asked for than the one that is served."""
    names = service.settings.model_names
    if model is not None and model not in names:
        raise RefusedError(
            f"the model {model!r:.200} is not served here; this server has {', '.join(map(repr, names))}",
            404, "model_not_found",
        )  # fmt: skip


async def _whole(service: Service, job: Job) -> bytes:
    outputs: list[RequestOutput | None] = [None] * len(job.asks)
    async with aclosing(service.run(job.asks, job.body, job.key, job.log)) as parts:
        async for part in parts:
            for index, chunk in part:
                if chunk.output is not None:
                    outputs[index] = chunk.output
    done = [output for output in outputs if output is not None]
    make = partial(_encoded, job, done, service.llm.tokenizer)
    params = job.body.params
    takes_long = params.logprobs is not None or params.prompt_logprobs is not None
    return await asyncio.to_thread(make) if takes_long else make()


def _encoded(job: Job, outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> bytes:
    if job.body.chat is not None:
        return msgspec.json.encode(chat_response(job.head, outputs[0], job.body, tokenizer))
    return msgspec.json.encode(completion_response(job.head, outputs, job.body, tokenizer))


async def _events(service: Service, job: Job) -> AsyncGenerator[bytes, None]:
    """Raises: what comes up before the first chunk; what comes later is the stream's last event."""
    shape = (ChatShape if job.body.chat is not None else CompletionShape)(job.body, service.llm.tokenizer)
    encoder = ChunkEncoder(job.head, shape, job.body, job.asks)
    opening: bytes | None = encoder.opening()
    try:
        async with aclosing(service.run(job.asks, job.body, job.key, job.log)) as parts:
            async for part in parts:
                takes_long = encoder.opens_prompts
                events = await asyncio.to_thread(encoder.encode, part) if takes_long else encoder.encode(part)
                yield opening + events if opening is not None else events
                opening = None
                # Back here, the connection has taken it.
                _, oldest = part[0]
                if oldest.emitted_s:
                    service.metrics.delivered(time.perf_counter() - oldest.emitted_s)
    except Exception as error:
        if opening is not None:
            raise
        if not isinstance(error, HotloopError):
            _log.exception("a stream failed")
        told = refusal(error)
        job.log["error"] = told.code or told.type  # its message may quote the prompt
        yield error_end(told.body)
        return
    yield encoder.end()
