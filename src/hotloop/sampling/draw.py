"""Draw the next token of many requests in one go; a row's token never depends on the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.request import TokenLogprobs
from hotloop.sampling.edits import Edits
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
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Draws the rows of a step on a thread team (None: on the calling thread); computes what definition.py defines."""

    def __init__(self, isa: str, team: _native.ThreadTeam | None = None) -> None:
        """isa: a usable kernel set. The sampler keeps its work space from call to call."""
        self._native = _native.Sampler(isa, team)

    def draw(
        self, logits: NDArray[np.float32], rows: Sequence[Row], *, logits_rows: Sequence[int] | None = None
    ) -> list[Draw | HotloopError]:
        """Draw one token for each of ``rows``.

        logits: float32 [n, vocab_size]; row i of ``rows`` uses logits[i], or logits[logits_rows[i]] (choices of one
        prompt share its last row). What is wrong with a row (NaN logits, nothing left to draw) is that row's result.
        """
        edits = [(i, e) for i, row in enumerate(rows) if (e := _edits(row)) is not None]
        token_ids, logprobs, faults = self._native.draw(
            logits,
            [row.state.draw_params for row in rows],
            list(range(len(rows))) if logits_rows is None else list(logits_rows),
            [row.position for row in rows],
            [(i, e.barred, e.bias_ids, e.bias, e.seen_ids, e.counts) for i, e in edits],
        )
        results: list[Draw | HotloopError] = [Draw(token_id) for token_id in token_ids]
        for i, logprob, rank, top in logprobs:
            results[i] = Draw(token_ids[i], TokenLogprobs(token_ids[i], logprob, rank, tuple(top)))
        for i, status, token_id in faults:
            values = logits[i if logits_rows is None else logits_rows[i]]
            results[i] = HotloopError(_message(status, rows[i], token_id, float(values[token_id])))
        return results


def draw(
    isa: str, logits: NDArray[np.float32], rows: Sequence[Row], *, logits_rows: Sequence[int] | None = None
) -> list[Draw | HotloopError]:
    """Sampler.draw on the calling thread, with a work space for this call only."""
    return Sampler(isa).draw(logits, rows, logits_rows=logits_rows)


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


def _message(status: _native.DrawStatus, row: Row, token_id: int, logit: float) -> str:
    if status == _native.DrawStatus.broken_logits:
        return f"the model's logits at position {row.position} have no finite maximum (token {token_id}: {logit})"
    if status == _native.DrawStatus.no_memory:
        return f"no memory to draw the token at position {row.position}"
    edits = _edits(row)
    barred = 0 if edits is None else len(edits.barred)
    return (
        f"nothing is left to draw at position {row.position}: before min_tokens no stop token is drawn, and the {barred} "
        f"stop tokens are all there is; lower min_tokens"
    )
