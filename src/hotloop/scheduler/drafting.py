"""Drafts in a step: after everybody has what they need, from what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hotloop.request import RequestId
from hotloop.scheduler.output import ScheduledRequest

Drafts: TypeAlias = Mapping[RequestId, Sequence[int]]


def with_drafts(
    scheduled: Sequence[ScheduledRequest], drafts: Drafts, budget: int, allocate: Callable[[RequestId, int], bool]
) -> list[ScheduledRequest]:
    """The step with drafts behind the last tokens of the requests that have some, in order, as far as ``budget`` tokens and
    the free blocks go; nobody is preempted for a draft. Those that find room become their request's draft_token_ids.

    allocate: as KVCacheManager's.
    """
    result = list(scheduled)
    for i, entry in enumerate(scheduled):
        request = entry.request
        wanted = drafts.get(request.request_id, ())
        count = min(len(wanted), budget)
        if not count or not entry.draws or entry.num_tokens > 1:
            continue
        while count and not allocate(request.request_id, entry.start + 1 + count):
            count //= 2
        if count:
            request.draft_token_ids = list(wanted[:count])
            result[i] = entry._replace(num_tokens=1 + count, num_draft_tokens=count)
            budget -= count
    return result
