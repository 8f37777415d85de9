"""What the core holds of live requests, and the account of their time and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotloop.kv_cache.layout import KVLayout
from hotloop.request import FinishReason, Request, RequestId, TokenDelta, TokenLogprobs
from hotloop.sampling.constraint import Constraint
from hotloop.sampling.draw import Draw
from hotloop.sampling.state import SamplerState
from hotloop.scheduler.output import SchedulerOutput
from hotloop.telemetry.timings import RequestClock


@dataclass(slots=True, eq=False)
class Live:
    """What the core holds of a request beside its blocks. sampler: from its first draw on. constraint: if its answer has to
    have a form. has_drafts: whether there can be some. prompt_logprobs: as far as they are known and nobody has them yet."""

    request: Request
    clock: RequestClock
    sampler: SamplerState | None = None
    constraint: Constraint | None = None
    has_drafts: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


class Drawn(NamedTuple):
    """What a request draws in a step: one token, or the drafts that were accepted and one more. finish: the last one ends it.
    draft_token_ids: all that were verified. A tuple, since every token makes one."""

    live: Live
    token_ids: list[int]
    draws: Sequence[Draw]  # of each of them
    finish: FinishReason | None
    draft_token_ids: Sequence[int] = ()

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that are among the tokens."""
        return sum(token_id == draft for token_id, draft in zip(self.token_ids, self.draft_token_ids, strict=False))


class Accounts:
    """Shares the time of each step out among its requests."""

    def __init__(self, layout: KVLayout) -> None:
        self._kv_reads = [(layout.token_bytes(g), group.window) for g, group in enumerate(layout.groups)]

    @staticmethod
    def prefix_tokens(output: SchedulerOutput, live: Mapping[RequestId, Live]) -> tuple[int, int]:
        """Prompt tokens of the requests that run for the first time, and those of them that the prefix cache had.

        To be called before ``add_step``. Of the choices of a prompt only the one that computes it counts.
        """
        new = [s.request for s in output.scheduled if live[s.request.request_id].clock.step < 0]
        return sum(len(r.prompt_token_ids) for r in new), sum(r.num_prefix_hit_tokens for r in new)

    def add_step(
        self,
        step: int,
        output: SchedulerOutput,
        live: Mapping[RequestId, Live],
        start_s: float,
        end_s: float,
        forward_s: float,
    ) -> tuple[int, int]:
        """Add step number ``step`` to its requests' clocks. Returns the number of decode tokens and the KV bytes they read.

        forward_s: of the time from start_s to end_s, the model.
        """
        clocks = [live[s.request.request_id].clock for s in output.scheduled]
        num_tokens = num_decode = 0
        for (_, _, num_new, _, _, num_drafts), clock in zip(output.scheduled, clocks, strict=True):
            num_tokens += num_new
            num_decode += num_new - num_drafts == 1 and clock.first_token_s > 0
        num_prefill = num_tokens - output.num_draft_tokens - num_decode
        kv_bytes = 0
        for (request, start, num_new, draws, _, num_drafts), clock in zip(output.scheduled, clocks, strict=True):
            is_decode = num_new - num_drafts == 1 and clock.first_token_s > 0
            others = num_prefill if is_decode else num_prefill - num_new + num_drafts
            clock.add_step(step, start_s, end_s, forward_s, others / num_tokens, is_decode=is_decode)
            if is_decode:
                end, read = start + num_new, 0
                for size, window in self._kv_reads:
                    read += size * (min(end, window + num_drafts) if window else end)
                clock.decode_kv_bytes += read
                kv_bytes += read
            if draws:
                clock.recomputes = False
                for child in output.forks.get(request.request_id, ()):
                    fork = live[child.request_id].clock
                    fork.add_step(step, start_s, end_s, forward_s, others / num_tokens, is_decode=False)
        return num_decode, kv_bytes


def token_deltas(drawn: Sequence[Drawn]) -> list[TokenDelta]:
    """What a step tells its clients of the tokens it drew."""
    deltas = []
    for one in drawn:
        live, token_ids, draws, finish, drafts = one
        request, clock = live.request, live.clock
        if drafts:
            clock.num_draft_tokens += len(drafts)
            clock.num_accepted_tokens += one.num_accepted_tokens
        timeline = clock.timeline(request.num_prefix_hit_tokens, request.num_preemptions)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if draws[0].logprobs is not None:
            logprobs = tuple([draw.logprobs for draw in draws if draw.logprobs is not None])
        scores, live.prompt_logprobs = tuple(live.prompt_logprobs), []
        deltas.append(
            TokenDelta(
                request.request_id, tuple(token_ids), logprobs, finish, None, timeline,
                mirostat_mu=draws[-1].mirostat_mu, prompt_logprobs=scores,
            )
        )  # fmt: skip
    return deltas
