"""Service: what every route works with, and the life of one request in it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from hotloop.engine.async_llm import AsyncLLM
from hotloop.engine.chats import Chat
from hotloop.engine.generation import StreamChunk
from hotloop.engine.inputs import Ask
from hotloop.errors import DeadlineError, HotloopError, OverloadedError
from hotloop.server.admission import Admission
from hotloop.server.bodies import Body
from hotloop.server.health import Health
from hotloop.server.logs import note_output
from hotloop.server.settings import ServeSettings
from hotloop.telemetry.prometheus import EndReason, Metrics, RejectReason


@dataclass(frozen=True, slots=True)
class Service:
    """fingerprint: see `system_fingerprint`. tokenizing: threads for prompts that would hold up the event loop."""

    llm: AsyncLLM
    settings: ServeSettings
    admission: Admission
    metrics: Metrics
    health: Health
    fingerprint: str
    started_s: int = field(default_factory=lambda: int(time.time()))
    tokenizing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="hotloop-tokenize")
    )

    @property
    def model_name(self) -> str:
        return self.settings.model_names[0]

    def warm_up(self) -> None:
        """What the first chat would wait for: the chat template's imports and its compilation."""
        with suppress(HotloopError):  # a template that cannot be used is told to those who use it
            self.llm.inputs.render(Chat([{"role": "user", "content": "hi"}]))

    async def run(
        self, asks: Sequence[Ask], body: Body, key: str, log: dict[str, Any]
    ) -> AsyncGenerator[list[tuple[int, StreamChunk]], None]:
        """The chunks of all prompts of a request, as `AsyncLLM.stream`, once it is its turn. key: whose request it is.
        log: gets what its line in the log says of the answers.

        Raises: OverloadedError, DeadlineError, and as `AsyncLLM.stream`.
        """
        num_requests = sum(len(ask.requests) for ask in asks)
        num_tokens = sum(
            len(ask.requests[0].prompt_token_ids) + sum(request.max_tokens for request in ask.requests) for ask in asks
        )
        deadline_s = asks[0].requests[0].deadline_s
        async with AsyncExitStack() as stack:
            try:
                turn = self.admission.enter(key, num_requests, num_tokens, body.priority, deadline_s)
                await stack.enter_async_context(turn)
            except BaseException as error:
                self.metrics.rejected(_why_it_never_ran(error))
                raise
            parts = await stack.enter_async_context(aclosing(self._run_admitted(asks, log)))
            async for part in parts:
                yield part

    async def _run_admitted(
        self, asks: Sequence[Ask], log: dict[str, Any]
    ) -> AsyncGenerator[list[tuple[int, StreamChunk]], None]:
        """The same with the books kept: every prompt that was started ends in them."""
        running = set(range(len(asks)))
        for ask in asks:
            self.metrics.request_started(ask.requests)
        reason: EndReason = "abort"
        try:
            async with aclosing(self.llm.stream(asks)) as parts:
                async for part in parts:
                    for index, chunk in part:
                        if chunk.output is not None:
                            running.discard(index)
                            self.metrics.request_finished(chunk.output)
                            note_output(log, chunk.output)
                            if self.settings.log_prompts:
                                log.setdefault("answers", []).extend(c.text for c in chunk.output.outputs)
                    yield part
        except DeadlineError:
            reason = "deadline"
            raise
        except Exception:
            reason = "error"
            raise
        finally:
            for _ in running:
                self.metrics.request_finished(None, reason)


def _why_it_never_ran(error: BaseException) -> RejectReason:
    if isinstance(error, OverloadedError):
        return "overloaded"
    if isinstance(error, DeadlineError):
        return "deadline"
    return "shutdown" if isinstance(error, HotloopError) else "left"
