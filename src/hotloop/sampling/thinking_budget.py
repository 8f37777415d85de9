"""ThinkingBudget: reasoning that has used up its tokens is ended, and the answer begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from hotloop.request import Thinking
from hotloop.sampling.constraint import Constraint, Mask


class _State(NamedTuple):
    """num_tokens: of the reasoning so far. tail: its last bytes, which may be the beginning of a marker. recent_ids: its last
    ids, at most as many as the end has."""

    phase: Literal["undecided", "thinking", "answering"]
    num_tokens: int = 0
    tail: bytes = b""
    recent_ids: tuple[int, ...] = ()


_ANSWERING = _State("answering")


class ThinkingBudget:
    """Of the tokens between an answer's begin and end of thinking at most ``budget`` are free; then the tokens of the end are
    all that is allowed. Implements `Constraint`.

    Where an answer is with its thinking is told by its text, as its readers tell it: markers may be written in any tokens, and
    the first one counts only at the very beginning.
    """

    def __init__(
        self, thinking: Thinking, budget: int, token_bytes: Callable[[int], bytes], inner: Constraint | None = None
    ) -> None:
        """token_bytes: the text of a token. inner: what else limits the tokens; it allows the end of thinking at any time."""
        self._begin, self._end = thinking.begin.encode(), thinking.end.encode()
        self._end_ids = thinking.end_ids
        self._budget = budget
        self._token_bytes = token_bytes
        self._inner = inner
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
        text = state.tail + self._token_bytes(token_id)
        num_tokens, recent_ids = state.num_tokens + 1, (*state.recent_ids, token_id)[-len(self._end_ids) :]
        if state.phase == "undecided":
            text = text.lstrip()
            if not text.startswith(self._begin):
                return _State("undecided", tail=text) if self._begin.startswith(text) else _ANSWERING
            text, num_tokens, recent_ids = text[len(self._begin) :], 0, ()
        if self._end in text or recent_ids == self._end_ids:
            return _ANSWERING
        return _State("thinking", num_tokens, text[max(0, len(text) - len(self._end) + 1) :], recent_ids)
