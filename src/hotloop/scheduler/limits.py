"""SchedulerLimits: the numbers a scheduler keeps to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """max_num_seqs: requests that hold blocks at a time. max_num_batched_tokens: tokens of one step, of all requests.
    max_model_len: tokens of a request, prompt + output. max_draft_tokens: drafts of one step, of all requests. lookahead: how
    many requests that do not fit now are passed over in search of one that does. max_bypasses: how many later requests may
    start before such a one; then nobody passes it any more. min_shared_tokens: a request waits while a running one computes at
    least so many of its first tokens.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_draft_tokens: int = 0
    lookahead: int = 8
    max_bypasses: int = 32
    min_shared_tokens: int = 64

    @property
    def max_running(self) -> int:
        """So many that every one of them can have a token in every step: a decode never waits."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
