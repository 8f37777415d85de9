"""draw: the next token of many requests in one go; a row's token never depends on the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import HotloopError
from hotloop.request import TokenLogprobs
from hotloop.sampling.edits import Edits
from hotloop.sampling.sampler import draw_row, token_logprobs
from hotloop.sampling.state import SamplerState


@dataclass(frozen=True, slots=True)
class Row:
    """One token to draw. position: the token's absolute position (prompt and output count).

    draft_token_ids: drafts between the state's output and this row, as if they had been pushed; k drafts of one request
    are verified by k + 1 rows with 0 to k of them.
    """

    state: SamplerState
    position: int
    draft_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn token, with raw logprobs where the request wants them."""

    token_id: int
    logprobs: TokenLogprobs | None


def draw(
    isa: str, logits: NDArray[np.float32], rows: Sequence[Row], *, logits_rows: Sequence[int] | None = None
) -> list[Draw | HotloopError]:
    """Draw one token for each of ``rows``.

    logits: float32 [n, vocab_size]; row i of ``rows`` uses logits[i], or logits[logits_rows[i]] (choices of one prompt
    share its last row). What is wrong with a row (NaN logits, nothing left to draw) is that row's result.
    """
    results: list[Draw | HotloopError] = []
    for i, row in enumerate(rows):
        values = logits[i if logits_rows is None else logits_rows[i]]
        params = row.state.draw_params
        try:
            token_id = draw_row(isa, values, params, _edits(row), row.position)
            wanted = params.num_logprobs >= 0
            logprobs = token_logprobs(isa, values, token_id, params.num_logprobs) if wanted else None
            results.append(Draw(token_id, logprobs))
        except HotloopError as error:
            results.append(error)
    return results


def _edits(row: Row) -> Edits | None:
    """Of the state as it would be with the drafts pushed; valid until the state changes."""
    state = row.state
    assert row.position == state.position + len(row.draft_token_ids), "a row of another position"
    if not row.draft_token_ids:
        return state.edits
    for token_id in row.draft_token_ids:
        state.push(token_id)
    edits = state.edits
    if edits is not None:
        edits = Edits(edits.barred, edits.bias_ids, edits.bias, edits.seen_ids.copy(), edits.counts.copy())
    state.rollback(len(row.draft_token_ids))
    return edits
