"""Drafting: asks a proposer for the drafts of the requests that can have some in the next step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from hotloop.engine.accounts import Live
from hotloop.request import RequestId
from hotloop.spec_decode.proposer import MAX_DRAFT_TOKENS, Drafting, Proposer

_log = logging.getLogger(__name__)


def can_have_drafts(live: Live, proposer: Proposer | None) -> bool:
    """Whether a request is ever to be asked for. With mirostat a row has to know what the one before it drew, so its tokens
    come one by one."""
    request = live.request
    draws_in_turn = request.params.mirostat != 0 and request.params.temperature != 0
    return proposer is not None and not draws_in_turn and proposer.serves(request, live.constraint)


def propose(proposer: Proposer, lives: Iterable[Live], vocab_size: int) -> dict[RequestId, Sequence[int]]:
    """Drafts of those requests that are at their last token and have room for two more; only ids of the vocabulary."""
    wanted = []
    for live in lives:
        request = live.request
        room = min(MAX_DRAFT_TOKENS, request.max_tokens - len(request.output_token_ids) - 1)
        if room > 0 and request.num_computed_tokens + 1 == request.num_tokens:
            wanted.append(Drafting(request, live.constraint, room))
    if not wanted:
        return {}
    try:
        proposed = proposer.propose(wanted)
    except Exception:
        _log.exception("no drafts in this step: the proposer failed")
        return {}
    drafts: dict[RequestId, Sequence[int]] = {}
    for drafting, token_ids in zip(wanted, proposed, strict=True):
        token_ids = token_ids[: drafting.max_tokens]
        bad = next((i for i, token_id in enumerate(token_ids) if not 0 <= token_id < vocab_size), len(token_ids))
        if bad:
            drafts[drafting.request.request_id] = token_ids[:bad]
    return drafts
