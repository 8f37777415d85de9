"""Drawing: from a step's rows of logits to the tokens of its requests, drafts verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.engine.accounts import Drawn, Live
from hotloop.engine.faults import draw_rows
from hotloop.engine.masks import Masks, RowMasks
from hotloop.request import FinishReason, Request, RequestId
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.state import SamplerState
from hotloop.scheduler.output import SchedulerOutput

Failed: TypeAlias = dict[RequestId, Exception]
# Who draws, from which row of logits on, whose forward pass gave it, and the drafts that the rows after it are for.
Drawing: TypeAlias = tuple[Live, int, RequestId, Sequence[int]]


class Drawer:
    """``start`` before the forward pass of a step, ``score`` and ``finish`` after it."""

    def __init__(self, isa: str, vocab_size: int, team: _native.ThreadTeam | None) -> None:
        """isa, team: of the runner; the team draws the rows of a step."""
        self._sampler = Sampler(isa, team)
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
            drafts: Sequence[int] = entry.request.draft_token_ids if entry.num_draft_tokens else ()
            for request in (entry.request, *output.forks.get(request_id, ())):
                live = lives[request.request_id]
                if live.sampler is None or live.sampler.position != request.num_tokens:  # or drafts were left in it by Ctrl-C
                    live.sampler = self._sampler_state(request)
                drawing.append((live, end - 1 - len(drafts), request_id, drafts))
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
        drawers: list[tuple[Live, Sequence[int], int]] = []  # with the number of its rows
        rows: list[Row] = []
        logits_rows: list[int] = []
        for live, first_row, computing_id, drafts in drawing:
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
                rows.append(Row(live.sampler, position, (), row_masks[0] if row_masks else None))
                logits_rows.append(first_row)
                drawers.append((live, drafts, 1))
                continue
            row_masks = [None] * (len(drafts) + 1) if row_masks is None else row_masks
            for i, mask in enumerate(row_masks):
                rows.append(Row(live.sampler, position + i, drafts[:i], mask))
                logits_rows.append(first_row + i)
            drawers.append((live, drafts, len(row_masks)))
        results = draw_rows(self._sampler, logits, rows, logits_rows)
        drawn: list[Drawn] = []
        begin = 0
        for live, drafts, num_rows in drawers:
            verified = _verified(live, drafts, results[begin : begin + num_rows])
            begin += num_rows
            if isinstance(verified, Drawn):
                drawn.append(verified)
            else:
                failed[live.request.request_id] = verified
        return drawn

    def _sampler_state(self, request: Request) -> SamplerState:
        return SamplerState(
            request.params, seed=request.seed, choice=request.choice, prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids, mirostat_mu=request.mirostat_mu,
            stop_token_ids=request.stop_token_ids, bad_word_ids=request.bad_word_ids, dry_breakers=request.dry_breakers,
            vocab_size=self._vocab_size,
        )  # fmt: skip


def _verified(live: Live, drafts: Sequence[int], results: Sequence[Draw | Exception]) -> Drawn | Exception:
    """What a request's rows have drawn, up to the first token that is not the draft which the next row saw, or that ends it.

    A row behind the first one that went wrong is no fault yet: the next step meets it again, if it comes to that.
    """
    request, first = live.request, results[0]
    if not isinstance(first, Draw):
        return first
    draws, token_ids = [first], [first.token_id]
    for draft, result in zip(drafts, results[1:], strict=False) if drafts else ():
        if token_ids[-1] != draft or draft in request.stop_token_ids or not isinstance(result, Draw):
            break
        draws.append(result)
        token_ids.append(result.token_id)
    finish: FinishReason | None = None
    if token_ids[-1] in request.stop_token_ids:
        finish = "stop"
    elif live.constraint is not None:
        try:
            if drafts:
                live.constraint.sync(request.output_token_ids, token_ids[:-1])
            live.constraint.push(token_ids[-1])
        except Exception as error:
            return error
        if live.constraint.is_complete:
            finish = "stop"
    if finish is None and len(request.output_token_ids) + len(token_ids) >= request.max_tokens:
        finish = "length"
    return Drawn(live, token_ids, draws, finish, drafts)
