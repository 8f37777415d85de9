"""How far two requests begin alike."""

from __future__ import annotations

from hotloop.request import Request


def num_shared_tokens(a: Request, b: Request, granularity: int) -> int:
    """Tokens of their common beginning, in multiples of ``granularity``, with at least one token left of ``a``."""
    end = min(a.num_tokens - 1, b.num_tokens)
    shared = 0
    while shared + granularity <= end and (
        a.token_ids(shared, shared + granularity) == b.token_ids(shared, shared + granularity)
    ):
        shared += granularity
    return shared
