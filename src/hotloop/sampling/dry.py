"""DRY ("don't repeat yourself"): a penalty on tokens that would go on repeating what the text ends with."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop import _native


class Dry:
    """What DRY needs to know of a context, the prompt and the output; removal in reverse order only.

    multiplier, base, allowed_length: of SamplingParams. breakers: one of the first ids, then all of the second: a sequence
    over which no repetition reaches. Ids that are one alone are never penalized.
    """

    __slots__ = ("_allowed_length", "_base", "_breakers", "_breaks", "_context", "_multiplier", "_single")

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        breakers: Iterable[tuple[Collection[int], Sequence[int]]],
        context_ids: Iterable[int],
    ) -> None:
        self._multiplier, self._base, self._allowed_length = multiplier, base, allowed_length
        self._single: set[int] = set()
        self._breakers: dict[int, list[tuple[frozenset[int], list[int]]]] = {}  # of several ids, by their last one
        for first, rest in breakers:
            if rest:
                self._breakers.setdefault(rest[-1], []).append((frozenset(first), list(rest)))
            else:
                self._single.update(first)
        self._context = array("i")
        self._breaks = [0]  # lengths of the context at which a breaker ended
        for token_id in context_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        context = self._context
        context.append(token_id)
        if token_id in self._single or any(
            len(context) > len(rest) and context[-len(rest) - 1] in first and context[-len(rest) :].tolist() == rest
            for first, rest in self._breakers.get(token_id, ())
        ):
            self._breaks.append(len(context))

    def remove(self) -> None:
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
