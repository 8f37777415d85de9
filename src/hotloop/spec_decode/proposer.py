"""Proposer: where draft tokens come from. The step that follows draws every token itself and keeps those drafts that it would
have drawn anyway, so a proposer changes speed and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hotloop.request import Request
from hotloop.sampling.constraint import Constraint

MAX_DRAFT_TOKENS = 16  # of a request in a step; a step takes 16 rows of one request in little more time than one


@dataclass(frozen=True, slots=True)
class Drafting:
    """A request whose next step may verify drafts. constraint: at its output, if it has one. max_tokens: more are of no use."""

    request: Request
    constraint: Constraint | None
    max_tokens: int


class Proposer(Protocol):
    def serves(self, request: Request, constraint: Constraint | None) -> bool:
        """Whether there can ever be drafts for a request; asked once."""
        ...

    def propose(self, wanted: Sequence[Drafting]) -> Sequence[Sequence[int]]:
        """For each request what may come after its last token: none or some ids, in order."""
        ...
