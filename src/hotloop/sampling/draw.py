"""Draw the next token of many requests in one go; a row's token never depends on the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.request import TokenLogprobs
from hotloop.sampling.definition import Draw, broken_logits, nothing_left
from hotloop.sampling.edits import Edits, Mask
from hotloop.sampling.state import SamplerState

__all__ = ["Draw", "Row", "Sampler", "edits_of"]


class Row(NamedTuple):
    """One token to draw. position: the token's absolute position (prompt and output count).

    mask: uint32 [ceil(vocab_size / 32)], bit id % 32 of word id / 32: whether the id is allowed here; None: all are.
    draft_token_ids: drafts between the state's output and this row, as if they had been pushed; k drafts of one request
    are verified by k + 1 rows with 0 to k of them. Not with mirostat, where a row has to know what the row before it drew
    (greedy drawing is none). A tuple, since every token makes one.
    """

    state: SamplerState
    position: int
    draft_token_ids: Sequence[int] = ()
    mask: Mask | None = None


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
        indices = range(len(rows)) if logits_rows is None else logits_rows
        processed = [i for i, row in enumerate(rows) if row.state.processors is not None]
        if not processed:
            return self._draw(logits, rows, indices)
        plain = [i for i, row in enumerate(rows) if row.state.processors is None]
        drawn = self._draw(logits, [rows[i] for i in plain], [indices[i] for i in plain]) if plain else []
        results = dict(zip(plain, drawn, strict=True))
        for i in processed:
            results[i] = self._draw_processed(logits[indices[i] : indices[i] + 1], rows[i])
        return [results[i] for i in range(len(rows))]

    def _draw_processed(self, logits: NDArray[np.float32], row: Row) -> Draw | HotloopError:
        """logits: float32 [1, vocab_size]."""
        state = row.state
        assert state.processors is not None
        processed = logits
        if np.isfinite(logits.max()):  # else it is the model's fault and the draw says so
            try:
                output_token_ids = [*state.output_token_ids, *row.draft_token_ids]
                processed = state.processors.process(logits[0], output_token_ids, row.position)[None]
            except HotloopError as error:
                return error
        (drawn,) = self._draw(processed, [row], [0])
        params = state.draw_params
        if isinstance(drawn, Draw) and params.num_logprobs >= 0 and not params.processed_logprobs:
            return drawn._replace(logprobs=self.logprobs(logits, [drawn.token_id], params.num_logprobs, row.position)[0])
        return drawn

    def _draw(
        self, logits: NDArray[np.float32], rows: Sequence[Row], logits_rows: Sequence[int]
    ) -> list[Draw | HotloopError]:
        edits = [(i, *e) for i, row in enumerate(rows) if (e := edits_of(row)) is not None]
        token_ids, logprobs, mus, faults = self._native.draw(
            logits,
            [row.state.draw_params for row in rows],
            list(logits_rows),
            [row.position for row in rows],
            [row.state.mirostat_mu for row in rows],
            edits,
        )
        results: list[Draw | HotloopError] = [Draw(token_id) for token_id in token_ids]
        for i, logprob, rank, top in logprobs:
            results[i] = Draw(token_ids[i], TokenLogprobs(token_ids[i], logprob, rank, tuple(top)))
        for i, mu in mus:
            drawn = results[i]
            assert isinstance(drawn, Draw)
            results[i] = drawn._replace(mirostat_mu=mu)
        for i, status, token_id in faults:
            results[i] = _error(status, rows[i], token_id, logits[logits_rows[i]])
        return results

    def logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int, first_position: int
    ) -> list[TokenLogprobs]:
        """Raw logprobs of given tokens and of the ``num_top`` top ones beside each.

        logits: float32 [n, vocab_size], one row per token. first_position: of the first token, for messages.
        Raises: HotloopError if a row has no finite maximum.
        """
        results = []
        scored = self._native.logprobs(logits, np.array(token_ids, np.int32), min(num_top, logits.shape[1]))
        for i, (status, token_id, logprob, rank, top) in enumerate(scored):
            if status != _native.DrawStatus.drawn:
                raise _broken(status, first_position + i, token_id, logits[i])
            results.append(TokenLogprobs(token_id, logprob, rank, tuple(top)))
        return results


def edits_of(row: Row) -> Edits | None:
    """Of the state as it would be with the drafts pushed, and the row's mask; valid until one is pushed that stays."""
    state = row.state
    assert row.position == state.position + len(row.draft_token_ids), "a row of another position"
    if not row.draft_token_ids:
        edits = state.edits
    else:
        assert not (state.draw_params.mirostat and state.draw_params.temperature), "its mu would be unknown"
        state.push_drafts(row.draft_token_ids)
        edits = state.edits
        if edits is not None:
            edits = edits._replace(seen_ids=edits.seen_ids.copy(), counts=edits.counts.copy())
        state.rollback(len(row.draft_token_ids))
    if row.mask is None:
        return edits
    if edits is None:
        return Edits(mask=row.mask)
    return edits._replace(mask=row.mask if edits.mask is None else row.mask & edits.mask)


def _error(status: _native.DrawStatus, row: Row, token_id: int, logits: NDArray[np.float32]) -> HotloopError:
    if status != _native.DrawStatus.nothing_left:
        return _broken(status, row.position, token_id, logits)
    edits = edits_of(row)
    assert edits is not None
    return nothing_left(row.position, edits)


def _broken(
    status: _native.DrawStatus, position: int, token_id: int, logits: NDArray[np.float32]
) -> HotloopError:
    if status == _native.DrawStatus.no_memory:
        return HotloopError(f"no memory for the sampler at position {position}")
    return broken_logits(position, token_id, float(logits[token_id]))
