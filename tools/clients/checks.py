"""A list of checks that fills itself, and what every check is told of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Check = Callable[["Server"], str]  # returns what was seen, in a few words; raises if that is wrong
CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Server:
    """url: without /v1. other_key: one that the server does not know."""

    url: str
    api_key: str
    model: str
    other_key: str = "sk-unknown"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


def check(name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        assert name not in CHECKS
        CHECKS[name] = function
        return function

    return add
