"""Drawing: from a step's rows of logits to the tokens of its requests, drafts verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.engine.accounts import Drawn, Live
from hotloop.engine.faults import draw_rows
from hotloop.engine.masks import Masks, RowMasks
from hotloop.request import FinishReason, Request, RequestId
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.state import SamplerState
from hotloop.scheduler.output import SchedulerOutput

Failed: TypeAlias = dict[RequestId, Exception]


class Drawing(NamedTuple):
    """Who draws. row: of the logits, its first one. computing_id: whose forward pass gave it. draft_token_ids: those that the
    rows after it are for."""

    live: Live
    row: int
    computing_id: RequestId
    draft_token_ids: Sequence[int]


class Drawer:
    """``start`` before the forward pass of a step, ``score`` and ``finish`` after it."""

    def __init__(self, isa: str, vocab_size: int) -> None:
        self._sampler = Sampler(isa)
        self._masks = Masks(vocab_size)
        self._vocab_size = vocab_size

    def start(self, output: SchedulerOutput, lives: Mapping[RequestId, Live]) -> list[Drawing]:
        """Who draws: the requests at their end, and the choices that fork off them. Their masks are made meanwhile."""
        drawing: list[Drawing] = []
        end = 0
        for entry in output.scheduled:
            end += entry.num_logits_rows
            if not entry.draws:
                continue
            request_id = entry.request.request_id
            row, drafts = end - 1 - entry.num_draft_tokens, entry.request.draft_token_ids
            for request in (entry.request, *output.forks.get(request_id, ())):
                live = lives[request.request_id]
                if live.sampler is None:
                    live.sampler = self._sampler_state(request)
                drawing.append(Drawing(live, row, request_id, drafts))
        self._masks.start(
            [
                (live.constraint, live.request.output_token_ids, drafts)
                for live, _, _, drafts in drawing
                if live.constraint is not None
            ]
        )
        return drawing

    def score(
        self, output: SchedulerOutput, lives: Mapping[RequestId, Live], logits: NDArray[np.float32], failed: Failed
    ) -> None:
        """Logprobs of prompt tokens, where they are wanted. Adds to ``failed``."""
        begin = 0
        for entry in output.scheduled:
            request, scores = entry.request, entry.scores
            rows = logits[begin : begin + len(scores)]
            begin += entry.num_logits_rows
            if not scores or request.request_id in failed:
                continue
            scored_ids = request.prompt_token_ids[scores.start + 1 : scores.stop + 1]
            num_top = request.params.prompt_logprobs or 0
            try:
                scored = self._sampler.logprobs(rows, scored_ids, num_top, scores.start + 1)
            except Exception as error:
                failed[request.request_id] = error
            else:
                lives[request.request_id].prompt_logprobs[scores.start : scores.stop] = scored

    def finish(self, drawing: Sequence[Drawing], logits: NDArray[np.float32], failed: Failed) -> list[Drawn]:
        """Their tokens. Adds to ``failed``, which has those whose forward pass failed."""
        masks = iter(self._masks.finish())
        unforwarded = dict(failed)
        drawers: list[tuple[Drawing, int]] = []  # with the end of its rows
        rows: list[Row] = []
        logits_rows: list[int] = []
        for one in drawing:
            live, first_row, computing_id, drafts = one
            row_masks: RowMasks | Exception | None = None if live.constraint is None else next(masks)
            if computing_id in unforwarded:
                failed[live.request.request_id] = unforwarded[computing_id]
                continue
            if isinstance(row_masks, Exception):
                failed[live.request.request_id] = row_masks
                continue
            assert live.sampler is not None
            position = live.request.num_tokens
            if not drafts:
                rows.append(Row(live.sampler, position, mask=None if row_masks is None else row_masks[0]))
                logits_rows.append(first_row)
            else:
                for i, mask in enumerate([None] * (len(drafts) + 1) if row_masks is None else row_masks):
                    rows.append(Row(live.sampler, position + i, drafts[:i], mask))
                    logits_rows.append(first_row + i)
            drawers.append((one, len(rows)))
        results = draw_rows(self._sampler, logits, rows, logits_rows)
        drawn: list[Drawn] = []
        begin = 0
        for one, end in drawers:
            verified = _verified(one, results[begin:end])
            begin = end
            if isinstance(verified, Drawn):
                drawn.append(verified)
            else:
                failed[one.live.request.request_id] = verified
        return drawn

    def _sampler_state(self, request: Request) -> SamplerState:
        return SamplerState(
            request.params, seed=request.seed, choice=request.choice, prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids, mirostat_mu=request.mirostat_mu,
            stop_token_ids=request.stop_token_ids, bad_word_ids=request.bad_word_ids, dry_breakers=request.dry_breakers,
            vocab_size=self._vocab_size,
        )  # fmt: skip


def _verified(drawing: Drawing, results: Sequence[Draw | Exception]) -> Drawn | Exception:
    """What a request's rows have drawn, up to the first token that is not the draft which the next row saw, or that ends it.

    A row behind the first one that went wrong is no fault yet: the next step meets it again, if it comes to that.
    """
    live, _, _, drafts = drawing
    request = live.request
    draws: list[Draw] = []
    for result, draft in zip(results, (*drafts, None), strict=False):
        if not isinstance(result, Draw):
            if not draws:
                return result
            break
        draws.append(result)
        if result.token_id != draft or draft in request.stop_token_ids:
            break
    last = draws[-1].token_id
    finish: FinishReason | None = None
    if last in request.stop_token_ids:
        finish = "stop"
    elif live.constraint is not None:
        try:
            if drafts:
                live.constraint.sync(request.output_token_ids, drafts[: len(draws) - 1])
            live.constraint.push(last)
        except Exception as error:
            return error
        if live.constraint.is_complete:
            finish = "stop"
    if finish is None and len(request.output_token_ids) + len(draws) >= request.max_tokens:
        finish = "length"
    return Drawn(live, draws, finish, drafts)
