"""Guesses: a proposer whose drafts are right, wrong, or right as far as some point; and engines that use it."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from hotloop import LLM
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.ops.batch import ForwardBatch
from hotloop.request import Request
from hotloop.sampling.constraint import Constraint
from hotloop.spec_decode.proposer import MAX_DRAFT_TOKENS, Drafting

Key = tuple[tuple[int, ...], str, int, int]


class Guesses:
    """Remembers every output that it sees. Of a request that it knows it proposes what comes next, half of the time with a
    token changed; of others any ids. silent: it only learns. With no luck of its own: equal requests get equal drafts.
    """

    def __init__(self, vocab_size: int, silent: bool, known: dict[Key, list[int]]) -> None:
        self._vocab_size = vocab_size
        self._silent = silent
        self._known = known

    def serves(self, request: Request, constraint: Constraint | None) -> bool:
        return True

    def propose(self, wanted: Sequence[Drafting]) -> list[list[int]]:
        return [self._guess(w.request) for w in wanted]

    def _guess(self, request: Request) -> list[int]:
        output = request.output_token_ids
        key = tuple(request.prompt_token_ids), repr(request.params), request.seed, request.choice
        known = self._known.setdefault(key, [])
        if len(output) > len(known):
            self._known[key] = known = list(output)
        if self._silent:
            return []
        rng = random.Random(hash((request.seed, request.choice, tuple(output))))
        guess = known[len(output) : len(output) + rng.randint(1, MAX_DRAFT_TOKENS)]
        while rng.random() < 0.6:
            guess.append(rng.randrange(self._vocab_size))
        if guess and rng.random() < 0.5:
            guess[rng.randrange(len(guess))] = rng.randrange(self._vocab_size)
        return guess


def guesses(llm: LLM) -> bool:
    """Whether it does: requests that are done sooner leave more room to others."""
    return isinstance(llm._core._proposer, Guesses)


def guess_in_all_engines(patch: pytest.MonkeyPatch) -> None:
    """Engines guess; those without speculation listen to what is right."""
    known: dict[Key, list[int]] = {}
    init, forward = EngineCore.__init__, ModelRunner.forward

    def init_and_guess(core: EngineCore, runner: Any, config: Any, *args: Any, **options: Any) -> None:
        init(core, runner, config, *args, **options)
        core._proposer = Guesses(runner.vocab_size, config.speculation == "none", known)

    def checked_forward(runner: ModelRunner, batch: ForwardBatch) -> Any:
        assert batch.token_ids.min() >= 0, "no token"  # known fault B119
        assert batch.token_ids.max() < runner.vocab_size, "no token"
        return forward(runner, batch)

    patch.setattr(EngineCore, "__init__", init_and_guess)
    patch.setattr(ModelRunner, "forward", checked_forward)
