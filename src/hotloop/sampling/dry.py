"""DRY ("don't repeat yourself"): a penalty on tokens that would go on repeating what the text ends with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.request import Breaker

_ByLastId: TypeAlias = Mapping[int, Sequence[tuple[frozenset[int], list[int]]]]


class Dry:
    """What DRY needs to know of a context, the prompt and the output; what was added is removed in reverse order only.

    multiplier, base, allowed_length: of SamplingParams. breakers: what no repetition reaches over. Ids that are one alone are
    never penalized.
    """

    __slots__ = ("_allowed_length", "_base", "_breakers", "_breaks", "_context", "_multiplier", "_single")

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        breakers: tuple[Breaker, ...],
        context_ids: Iterable[int],
    ) -> None:
        self._multiplier, self._base, self._allowed_length = multiplier, base, allowed_length
        self._single, self._breakers = _by_last_id(breakers)
        self._context = array("i", context_ids)
        # Lengths of the context at which a breaker ended: the last one that it has now, and all to come.
        self._breaks = [next(filter(self._is_broken_at, range(len(self._context), 0, -1)), 0)]

    def add(self, token_id: int) -> None:
        self._context.append(token_id)
        if self._is_broken_at(len(self._context)):
            self._breaks.append(len(self._context))

    def _is_broken_at(self, length: int) -> bool:
        """Whether a breaker ends with so many tokens of the context."""
        context = self._context
        token_id = context[length - 1]
        if token_id in self._single:
            return True
        for first, rest in self._breakers.get(token_id, ()):
            begin = length - len(rest)
            if begin > 0 and context[begin - 1] in first and context[begin:length].tolist() == rest:
                return True
        return False

    def remove(self) -> None:
        """The last id that was added."""
        if self._breaks[-1] == len(self._context):
            self._breaks.pop()
        self._context.pop()

    @property
    def penalties(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids and what is to be subtracted from their logits."""
        found = _native.dry_penalties(
            np.frombuffer(self._context, np.int32), self._multiplier, self._base, self._allowed_length,
            len(self._context) - self._breaks[-1],
        )  # fmt: skip
        found = [(token_id, penalty) for token_id, penalty in found if token_id not in self._single]
        return np.array([i for i, _ in found], np.int32), np.array([p for _, p in found], np.float32)


@lru_cache(maxsize=16)  # the choices of a request have the same ones, which may be as many ids as a vocabulary has
def _by_last_id(breakers: tuple[Breaker, ...]) -> tuple[frozenset[int], _ByLastId]:
    """Those that are one id, and of the others, by their last id, those that they may begin with and what comes then."""
    single: set[int] = set()
    several: dict[int, list[tuple[frozenset[int], list[int]]]] = {}
    for ids, rests in breakers:
        first = frozenset(ids)
        for rest in rests:
            if rest:
                several.setdefault(rest[-1], []).append((first, list(rest)))
            else:
                single |= first
    return frozenset(single), several
