"""ThinkingBudget: reasoning that has used up its tokens is ended, and the answer begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from hotloop.request import Thinking
from hotloop.sampling.constraint import Constraint, Mask
from hotloop.sampling.markers import START, Markers, State
from hotloop.sampling.token_index import TextOf


class _State(NamedTuple):
    """num_tokens: of the reasoning so far. marker: what of the text so far may be the beginning of the next marker. recent_ids:
    the last ones of the reasoning, at most as many as the end has."""

    phase: Literal["undecided", "thinking", "answering"]
    num_tokens: int = 0
    marker: State = START
    recent_ids: tuple[int, ...] = ()


_ANSWERING = _State("answering")


class ThinkingBudget:
    """Of the tokens between an answer's begin and end of thinking at most ``budget`` are free; then the tokens of the end are
    all that is allowed. Implements `Constraint`.

    Where an answer is with its thinking is told by its text, as its readers tell it: markers may be written in any tokens, and
    the first one counts only at the very beginning. An answer in a form has to begin with the first one's own token.
    """

    def __init__(
        self,
        thinking: Thinking,
        budget: int,
        text_of: TextOf,
        inner: Constraint | None = None,
        *,
        begins_free: bool = False,
    ) -> None:
        """text_of: of tokens, as its readers see them. inner: what else limits the tokens; it allows the end of thinking at any
        time. begins_free: whether it lets an answer begin with any text."""
        self._begin, self._end = Markers([thinking.begin], at_start=True), Markers([thinking.end])
        self._begin_ids, self._end_ids = thinking.begin_ids, thinking.end_ids
        self._budget = budget
        self._text_of = text_of
        self._inner = inner
        self._needs_token = inner is not None and not begins_free
        self._states = [_State("thinking" if thinking.is_open else "undecided")]  # before each id pushed, and now

    @property
    def is_complete(self) -> bool:
        return self._inner is not None and self._inner.is_complete

    def sync(self, output_token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()) -> None:
        if self._inner is not None:
            self._inner.sync(output_token_ids, draft_token_ids)
        num_output = len(output_token_ids)
        del self._states[num_output + len(draft_token_ids) + 1 :]
        for token_id in output_token_ids[len(self._states) - 1 :]:
            self._advance(token_id)
        for token_id in draft_token_ids[len(self._states) - 1 - num_output :]:
            self._advance(token_id)

    def fill_mask(self, mask: Mask) -> bool:
        forced = self._end_ids_left()
        if forced:
            mask[:] = 0
            mask[forced[0] // 32] = np.uint32(1 << forced[0] % 32)
            return True
        return self._inner is not None and self._inner.fill_mask(mask)

    def push(self, token_id: int) -> None:
        if self._inner is not None:
            self._inner.push(token_id)
        self._advance(token_id)

    def push_draft(self, token_id: int) -> bool:
        forced = self._end_ids_left()
        if forced and forced[0] != token_id:
            return False
        if self._inner is not None and not self._inner.push_draft(token_id):
            return False
        self._advance(token_id)
        return True

    def forced_token_ids(self) -> list[int]:
        return self._end_ids_left() or ([] if self._inner is None else self._inner.forced_token_ids())

    def _end_ids_left(self) -> list[int]:
        """What of the end is to come now; nothing while the budget lasts."""
        state, end_ids = self._states[-1], self._end_ids
        if state.phase != "thinking" or state.num_tokens < self._budget:
            return []
        num_there = max(n for n in range(len(end_ids)) if state.recent_ids[len(state.recent_ids) - n :] == end_ids[:n])
        return list(end_ids[num_there:])

    def _advance(self, token_id: int) -> None:
        self._states.append(self._after(self._states[-1], token_id))

    def _after(self, state: _State, token_id: int) -> _State:
        if state.phase == "answering":
            return state
        text, marker = self._text_of(token_id), state.marker
        num_tokens, recent_ids = state.num_tokens + 1, (*state.recent_ids, token_id)[-len(self._end_ids) :]
        if state.phase == "undecided":
            if self._needs_token and (token_id,) != self._begin_ids:
                return _ANSWERING
            marker, found = self._begin.advance(marker, text)
            if found is None:
                return _ANSWERING if marker is None else state._replace(marker=marker)
            text, marker, num_tokens, recent_ids = found[1], START, 0, ()
        marker, found = self._end.advance(marker, text)
        if found is not None or recent_ids == self._end_ids:
            return _ANSWERING
        return _State("thinking", num_tokens, marker, recent_ids)
