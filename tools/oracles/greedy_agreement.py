"""Where two greedy continuations part, and whether the float64 logits there excuse it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from float64_forward import last_logits

MAX_GAP_NATS = 0.5
MIN_SHARED = 0.8


@dataclass(frozen=True, slots=True)
class Divergence:
    """A first difference: equal tokens before it, the two tokens, float64's two best and their gap."""

    prompt_index: int
    num_equal: int
    ours: int
    theirs: int
    best_two: tuple[int, int]
    gap_nats: float


@dataclass(frozen=True, slots=True)
class GreedyReport:
    """All first differences, and the share of all tokens that come before them."""

    divergences: tuple[Divergence, ...]
    shared: float

    @property
    def passed(self) -> bool:
        """Every difference is at a near-tie, and most tokens come before one."""
        return self.shared >= MIN_SHARED and all(each.gap_nats < MAX_GAP_NATS for each in self.divergences)

    def __str__(self) -> str:
        lines = [
            f"prompt {each.prompt_index}: {each.num_equal} equal, then ours {each.ours}, "
            f"theirs {each.theirs}; float64 best two {each.best_two}, gap {each.gap_nats:.4f} nats"
            for each in self.divergences
        ]
        verdict = "pass" if self.passed else "FAIL"
        lines.append(f"tokens before a first difference: {self.shared:.1%} (>= {MIN_SHARED:.0%}): {verdict}")
        return "\n".join(lines)


def num_equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common prefix."""
    different = (index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next(different, min(len(ours), len(theirs)))


def shared_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of all tokens that come before a first difference."""
    equal = sum(num_equal_tokens(a, b) for a, b in zip(ours, theirs, strict=True))
    return equal / max(sum(len(tokens) for tokens in theirs), 1)


def greedy_agreement(
    model: Path,
    prompts: Sequence[Sequence[int]],
    ours: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
) -> GreedyReport:
    """Compare greedy continuations of the same prompts; a float64 forward pass judges each first difference.

    Raises: ValueError if two continuations of a prompt differ in length.
    """
    num_equal = []
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"prompt {index}: {len(a)} tokens of ours but {len(b)} of theirs")
        num_equal.append(num_equal_tokens(a, b))
    parted = [index for index, count in enumerate(num_equal) if count < len(ours[index])]
    shared = shared_tokens(ours, theirs)
    if not parted:
        return GreedyReport((), shared)
    rows = last_logits(model, [[*prompts[index], *ours[index][: num_equal[index]]] for index in parted])
    divergences = []
    for index, row in zip(parted, rows, strict=True):
        second, best = (int(token) for token in np.argsort(row, kind="stable")[-2:])
        at = num_equal[index]
        gap = float(np.float64(row[best]) - np.float64(row[second]))
        divergences.append(Divergence(index, at, ours[index][at], theirs[index][at], (best, second), gap))
    return GreedyReport(tuple(divergences), shared)
