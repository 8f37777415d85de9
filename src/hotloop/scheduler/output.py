"""What a step is to do: plain data from the scheduler to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hotloop.request import Request, RequestId


class ScheduledRequest(NamedTuple):
    """Compute ``num_tokens`` tokens of a request from position ``start``. draws: the last of them but the drafts is the last
    that the request has, so its row of logits yields a new token. scores: positions of its prompt whose logits are wanted
    besides, for prompt_logprobs; those before the last. num_draft_tokens: so many of the tokens are drafts, and each has a
    row of logits too. A tuple, since every step makes one for each request."""

    request: Request
    start: int
    num_tokens: int
    draws: bool
    scores: range = range(0)
    num_draft_tokens: int = 0

    @property
    def num_logits_rows(self) -> int:
        """First those of ``scores``, then the one that draws, then those of the drafts."""
        return len(self.scores) + self.draws + self.num_draft_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. Blocks for all of it are allocated.

    scheduled: decodes first. forks: parent request id -> children, none of them in ``scheduled``; each
    draws its first token from the parent's row of logits. block_copies: (source, destination) block ids, to copy in this
    order before the forward. preempted: lost their blocks and wait again. expired: dropped, their deadline has passed.
    num_draft_tokens: of all requests.
    """

    scheduled: tuple[ScheduledRequest, ...]
    forks: Mapping[RequestId, tuple[Request, ...]]
    block_copies: tuple[tuple[int, int], ...]
    preempted: tuple[RequestId, ...]
    expired: tuple[RequestId, ...]
    num_draft_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)
