"""The choices a scheduler makes, each a small object beside its loop: order, share of the budget, victim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hotloop.request import Request

OrderKey = tuple[int, int]  # lower goes first


class Order(Protocol):
    def key(self, request: Request, arrival: int) -> OrderKey:
        """Rank of a request that was the ``arrival``-th to be added; no two are alike, and it never changes."""


class FirstComeFirstServed:
    def key(self, request: Request, arrival: int) -> OrderKey:
        return 0, arrival


class ByPriority:
    """Lower ``priority`` first; first come, first served among equals."""

    def key(self, request: Request, arrival: int) -> OrderKey:
        return request.priority, arrival


class PrefillBudget(Protocol):
    def tokens(self, left: int, num_decodes: int) -> int:
        """How many of the ``left`` tokens of a step prefills may take beside ``num_decodes`` decodes."""


@dataclass(frozen=True, slots=True)
class FewBesideDecodes:
    """Everything while nobody decodes, at most ``beside_decodes`` tokens otherwise (None: no limit): every token of a
    prefill lengthens the step that the decodes are in."""

    beside_decodes: int | None = None

    def tokens(self, left: int, num_decodes: int) -> int:
        return min(left, self.beside_decodes) if num_decodes and self.beside_decodes else left


class PrefillShare(Protocol):
    def floor(self, budget: int) -> int:
        """Tokens that each prefill may count on, as long as the budget lasts."""

    def share(self, budget: int, needs: Sequence[int]) -> list[int]:
        """How many of ``budget`` tokens each of the prefills gets: at most its need. In the scheduler's order."""


@dataclass(frozen=True, slots=True)
class FloorThenOldest:
    """Every prefill in line gets a small share, so that a short prompt behind long ones is soon done; what is left goes to
    the oldest, so that it ends early and not all end late. The share is a 16th of the budget, at least ``smallest``."""

    smallest: int = 16

    def floor(self, budget: int) -> int:
        return max(self.smallest, budget // 16)

    def share(self, budget: int, needs: Sequence[int]) -> list[int]:
        floor = self.floor(budget)
        shares = []
        for need in needs:
            shares.append(min(need, floor, budget))
            budget -= shares[-1]
        for i, need in enumerate(needs):
            more = min(need - shares[i], budget)
            shares[i] += more
            budget -= more
        return shares


class Victim(Protocol):
    def choose(self, candidates: Sequence[Request]) -> int:
        """Which of the running requests, in the scheduler's order, gives up its blocks."""


class LatestArrival:
    """The last in order: of the lowest priority the latest arrival. It has the least claim."""

    def choose(self, candidates: Sequence[Request]) -> int:
        return len(candidates) - 1


@dataclass(frozen=True, slots=True)
class Policies:
    order: Order = field(default_factory=FirstComeFirstServed)
    prefill_budget: PrefillBudget = field(default_factory=FewBesideDecodes)
    prefill_share: PrefillShare = field(default_factory=FloorThenOldest)
    victim: Victim = field(default_factory=LatestArrival)
