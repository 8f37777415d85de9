"""Compiling: requests wait here for what limits their tokens; it is made beside the steps, before the scheduler sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeAlias

from hotloop.engine.side_thread import SideThread
from hotloop.request import Request
from hotloop.sampling.constraint import Constraint
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.sampling.stages import Form
from hotloop.sampling.thinking_budget import ThinkingBudget
from hotloop.structured_outputs import StructuredOutputsParams

Grammars: TypeAlias = Mapping[StructuredOutputsParams, Form]


class Compiling:
    """The requests that wait for grammars."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._thread = SideThread("hotloop-grammars")
        self._jobs: list[tuple[Sequence[Request], Future[Grammars]]] = []

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    def cached(self, requests: Sequence[Request]) -> Grammars | None:
        """The grammars of the requests, unless some are yet to be compiled, or the texts of tokens to be loaded."""
        if not self._compiler.is_loaded and any(map(_counts_thinking, requests)):
            return None
        grammars = {}
        for spec in _specs(requests):
            grammar = self._compiler.cached(spec)
            if grammar is None:
                return None
            grammars[spec] = grammar
        return grammars

    def start(self, requests: Sequence[Request]) -> None:
        specs, counts_thinking = _specs(requests), any(map(_counts_thinking, requests))

        def compile_all() -> Grammars:
            if counts_thinking:
                self._compiler.token_index()
            return {spec: self._compiler.compile(spec) for spec in specs}

        self._jobs.append((requests, self._thread.submit(compile_all)))

    def constraint(self, request: Request, grammars: Grammars) -> Constraint | None:
        """What limits the tokens of a request. grammars: what ``cached`` gave or a job that is done."""
        params, thinking = request.params, request.thinking
        form = None if params.structured_outputs is None else grammars[params.structured_outputs]
        if form is None and not _counts_thinking(request):
            return None
        markers = [*(() if form is None else form.markers), *(() if thinking is None else (thinking.begin, thinking.end))]
        text_of = self._compiler.token_index().shown(markers, shows_control=not params.skip_special_tokens)
        constraint = None
        if form is not None:
            constraint = form.start(request.stop_token_ids, thinking, request.max_tokens, text_of)
        if params.thinking_budget is not None and thinking is not None:
            constraint = ThinkingBudget(
                thinking, params.thinking_budget, text_of, constraint, begins_free=form is not None and form.begins_free
            )
        return constraint

    def take_done(self) -> list[tuple[Sequence[Request], Future[Grammars]]]:
        """Requests whose grammars are there, or could not be compiled."""
        done = [entry for entry in self._jobs if entry[1].done()]
        self._jobs = [entry for entry in self._jobs if entry not in done]
        return done

    def wait(self, timeout_s: float) -> None:
        """Until some are done."""
        wait([job for _, job in self._jobs], timeout_s, "FIRST_COMPLETED")

    def forget(self) -> None:
        """All requests."""
        self._jobs.clear()


def _counts_thinking(request: Request) -> bool:
    return request.params.thinking_budget is not None and request.thinking is not None


def _specs(requests: Sequence[Request]) -> set[StructuredOutputsParams]:
    return {spec for request in requests if (spec := request.params.structured_outputs) is not None}
