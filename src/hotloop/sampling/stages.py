"""Stages of an answer: free text up to a marker, or text in a form; and the constraint that goes from one to the next.

Free text has no mask at all, so neither its speed nor its draws change, but for one thing: a token that ends a marker and goes
on in a way that the next stage would refuse is barred.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from hotloop.errors import InvalidRequestError
from hotloop.request import Thinking
from hotloop.sampling.constraint import Constraint, Mask
from hotloop.sampling.markers import START, Markers, State
from hotloop.sampling.token_index import TextOf, TokenIndex

_MAX_SKIPPED = 2  # tokens of line ends between thinking and a form


class StartsConstraints(Protocol):
    """A compiled grammar."""

    @property
    def is_worn(self) -> bool:
        """Whether further constraints should have one of their own."""
        ...

    def start(self, stop_token_ids: Collection[int] = (), max_tokens: int | None = None) -> Constraint: ...

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Whether they may be the beginning."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Formed:
    """Text that keeps to a grammar. then: what follows once it is complete; None is the end of the answer. skips_line_ends:
    tokens of line ends may come before it."""

    grammar: StartsConstraints
    then: Free | None = None
    skips_line_ends: bool = False


@dataclass(slots=True, eq=False)
class Free:
    """Free text up to a marker. follow: the stage after each. bars_stops: the answer may not end here. barred: of each state
    that was asked for, which tokens are."""

    markers: Markers
    index: TokenIndex
    follow: Sequence[Stage] = ()
    bars_stops: bool = False
    barred: dict[State, list[int]] = field(default_factory=dict)

    def barred_ids(self, state: State) -> list[int]:
        """Tokens that lead to where nothing can follow."""
        barred = self.barred.get(state)
        if barred is None:
            candidates = {i for marker in self.markers.texts for i in self.index.may_cross(marker, state)}
            barred = [i for i in sorted(candidates) if not self._may_follow(state, self.index.text(i))]
            self.barred[state] = barred
        return barred

    def _may_follow(self, state: State, text: str) -> bool:
        _, found = self.markers.advance(state, text)
        return found is None or may_begin(self.follow[found[0]], found[1], self.index)


Stage: TypeAlias = Formed | Free


def may_begin(stage: Stage, text: str, index: TokenIndex) -> bool:
    """Whether a stage may begin with a text, which was a part of the token that ended the last one."""
    if isinstance(stage, Free):
        _, found = stage.markers.advance(START, text)
        return found is None or may_begin(stage.follow[found[0]], found[1], index)
    ids = _byte_ids(stage, text, index)
    return ids is not None and stage.grammar.accepts(ids)


def _byte_ids(stage: Formed, text: str, index: TokenIndex) -> list[int] | None:
    """The text as tokens, byte by byte; None if the vocabulary cannot say it so."""
    text = text.lstrip("\n") if stage.skips_line_ends else text
    return [index.byte_ids[c] for c in text] if all(c in index.byte_ids for c in text) else None


@dataclass(slots=True, eq=False)
class _InFree:
    """stage, since so many pushed ids. states: before each id pushed since, and now."""

    stage: Free
    since: int
    states: list[State]


@dataclass(slots=True, eq=False)
class _InForm:
    """fed: the ids that the constraint has, of which the first num_given are not of the output but bytes of the one before.
    num_skipped: tokens of line ends right before it."""

    stage: Formed
    since: int
    constraint: Constraint
    fed: list[int]
    num_given: int
    num_skipped: int = 0

    @property
    def may_skip(self) -> bool:
        return self.stage.skips_line_ends and not self.fed and self.num_skipped < _MAX_SKIPPED


class StagedConstraint:
    """Goes through stages; implements `Constraint`. thinking: what comes first if the answer begins with that marker, in any
    tokens. begin_ids: where the first stage is a form, the tokens that may begin thinking in its place. max_tokens: of the
    whole answer, None if nobody knows. text_of: of tokens, as the readers of the answer see them."""

    def __init__(
        self,
        first: Stage,
        index: TokenIndex,
        stop_token_ids: Collection[int],
        thinking: tuple[Markers, Stage] | None = None,
        max_tokens: int | None = None,
        *,
        text_of: TextOf,
        begin_ids: Collection[int] = (),
    ) -> None:
        self._index = index
        self._text_of = text_of
        self._stop_token_ids = frozenset(stop_token_ids)
        self._thinking = thinking
        self._begin_states: list[State] = [START]  # while it may begin: before each id pushed, and now
        self._begin_ids = frozenset(begin_ids) - self._stop_token_ids
        self._line_end_ids = index.line_end_ids - self._stop_token_ids
        self._max_tokens = max_tokens
        self._num_pushed = 0
        self._passed: list[_InFree | _InForm] = []  # all stages so far; the last is where it is
        self._enter(first, "")

    @property
    def is_complete(self) -> bool:
        now = self._passed[-1]
        return isinstance(now, _InForm) and now.stage.then is None and now.constraint.is_complete

    def sync(self, output_token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()) -> None:
        num_wanted = len(output_token_ids) + len(draft_token_ids)
        if self._num_pushed > num_wanted:
            self._take_back(num_wanted)
        for token_id in output_token_ids[self._num_pushed :]:
            self.push(token_id)
        for token_id in draft_token_ids[self._num_pushed - len(output_token_ids) :]:
            self.push(token_id)

    def fill_mask(self, mask: Mask) -> bool:
        now = self._passed[-1]
        if isinstance(now, _InFree):
            barred: Collection[int] = now.stage.barred_ids(now.states[-1])
            if now.stage.bars_stops:
                barred = self._stop_token_ids | set(barred)
            if not barred:
                return False
            mask[:] = np.uint32(0xFFFFFFFF)
            for token_id in barred:
                mask[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            return True
        now.constraint.fill_mask(mask)
        for token_id in self._before(now):
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return True

    def push(self, token_id: int) -> None:
        now = self._passed[-1]
        thought = self._thought(token_id, now)
        if thought is not None:
            self._num_pushed += 1
            self._enter(*thought)
        elif isinstance(now, _InFree):
            state, found = now.stage.markers.advance(now.states[-1], self._text_of(token_id))
            now.states.append(state)
            self._num_pushed += 1
            if found is not None:
                self._enter(now.stage.follow[found[0]], found[1])
        elif token_id in self._before(now):
            self._num_pushed += 1
            self._enter(now.stage, "", now.num_skipped + 1)
        else:
            now.constraint.push(token_id)
            now.fed.append(token_id)
            self._num_pushed += 1
            self._leave(now)

    def _before(self, now: _InForm) -> Collection[int]:
        """Tokens that may come now and are none of the form."""
        if now.may_skip:
            return self._line_end_ids
        return () if self._num_pushed else self._begin_ids

    def _thought(self, token_id: int, now: _InFree | _InForm) -> tuple[Stage, str] | None:
        """The thinking that the answer begins with, if it does so with this token, and what the token goes on with."""
        if self._thinking is None or len(self._begin_states) <= self._num_pushed:
            return None
        if isinstance(now, _InForm) and token_id not in self._begin_ids:
            return None
        markers, stage = self._thinking
        state, found = markers.advance(self._begin_states[-1], self._text_of(token_id))
        if state is not None:
            self._begin_states.append(state)
        return None if found is None else (stage, found[1])

    def push_draft(self, token_id: int) -> bool:
        if token_id in self._stop_token_ids:
            return False
        now = self._passed[-1]
        if isinstance(now, _InForm) and token_id not in self._before(now):
            if not now.constraint.push_draft(token_id):
                return False
            now.fed.append(token_id)
            self._num_pushed += 1
            return True
        before = self._num_pushed
        try:
            self.push(token_id)
        except InvalidRequestError:
            self._take_back(before)
            return False
        if self.is_complete:
            self._take_back(before)
            return False
        return True

    def forced_token_ids(self) -> list[int]:
        now = self._passed[-1]
        if isinstance(now, _InFree) or self._before(now):
            return []
        return now.constraint.forced_token_ids()

    def _enter(self, stage: Stage, text: str, num_skipped: int = 0) -> None:
        """text: of the token that ended the stage before, what it goes on with."""
        if isinstance(stage, Free):
            state, found = stage.markers.advance(START, text)
            self._passed.append(_InFree(stage, self._num_pushed, [state]))
            if found is not None:
                self._enter(stage.follow[found[0]], found[1])
            return
        ids = _byte_ids(stage, text, self._index)
        if ids is None:
            raise InvalidRequestError(f"the answer cannot go on with {text!r:.60} within its form")
        left = None if self._max_tokens is None else self._max_tokens - self._num_pushed + len(ids)
        constraint = stage.grammar.start(self._stop_token_ids, left)
        constraint.sync(ids)
        entered = _InForm(stage, self._num_pushed, constraint, ids, len(ids), num_skipped)
        self._passed.append(entered)
        self._leave(entered)

    def _leave(self, now: _InForm) -> None:
        """Go on if it is complete and not the last."""
        if now.stage.then is not None and now.constraint.is_complete:
            self._enter(now.stage.then, "")

    def _take_back(self, num_left: int) -> None:
        """All ids pushed after so many."""
        while self._passed[-1].since > num_left:
            self._passed.pop()
        self._num_pushed = num_left
        del self._begin_states[num_left + 1 :]
        now = self._passed[-1]
        num_here = num_left - now.since
        if isinstance(now, _InFree):
            del now.states[num_here + 1 :]
            return
        del now.fed[now.num_given + num_here :]
        now.constraint.sync(now.fed)


class Form:
    """What a request's structured_outputs were compiled to: the stage that its answer begins with."""

    def __init__(
        self, first: Stage, grammars: Sequence[StartsConstraints], index: TokenIndex, markers: Sequence[str] = ()
    ) -> None:
        """grammars: all of its stages. markers: of calls."""
        self.markers = markers
        self._first = first
        self._grammars = grammars
        self._index = index
        self._thoughts: dict[str, Free] = {}  # by the text that ends them

    @property
    def begins_free(self) -> bool:
        """Whether the answer may begin with any text."""
        return isinstance(self._first, Free)

    @property
    def is_worn(self) -> bool:
        return any(grammar.is_worn for grammar in self._grammars)

    def start(
        self,
        stop_token_ids: Collection[int] = (),
        thinking: Thinking | None = None,
        max_tokens: int | None = None,
        text_of: TextOf | None = None,
    ) -> Constraint:
        """The constraint of one request. stop_token_ids: end it, and are allowed where that may be only. thinking: comes before
        the form. max_tokens: of the whole answer, None if nobody knows. text_of: of tokens as its readers see them, if some are
        hidden."""
        begin_ids: Collection[int] = ()
        begin, first = None, self._first
        if thinking is None:
            if isinstance(first, Formed) and first.then is None:
                return first.grammar.start(stop_token_ids, max_tokens)
        elif thinking.is_open:
            first = self._thought(thinking)
        else:
            begin = Markers([thinking.begin], at_start=True), self._thought(thinking)
            if not self.begins_free and len(thinking.begin_ids) == 1:
                begin_ids = thinking.begin_ids
        return StagedConstraint(
            first, self._index, stop_token_ids, begin, max_tokens, text_of=text_of or self._index.text, begin_ids=begin_ids
        )

    def _thought(self, thinking: Thinking) -> Free:
        thought = self._thoughts.get(thinking.end)
        if thought is None:
            after = replace(self._first, skips_line_ends=True) if isinstance(self._first, Formed) else self._first
            thought = Free(Markers([thinking.end]), self._index, [after], bars_stops=isinstance(self._first, Formed))
            self._thoughts[thinking.end] = thought
        return thought
