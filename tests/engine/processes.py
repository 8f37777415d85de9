"""Engines in processes of their own, for tests: started over a tiny model, and run to the end of some requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.jobs import Job
from hotloop.engine.client import EngineClient
from hotloop.engine.inputs import InputProcessor
from hotloop.engine.loading import load_engine
from hotloop.engine.serving import start_engine_process
from hotloop.engine.supervisor import SupervisedClient
from hotloop.request import FinishReason, Request, RequestId, Timeline, TokenDelta, TokenLogprobs

TESTS = Path(__file__).parents[1]


@dataclass
class Answer:
    """All that an engine said of a request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: FinishReason | str | None = None
    error_kind: str | None = None
    timelines: list[Timeline] = field(default_factory=list)

    def take(self, delta: TokenDelta) -> None:
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.end = delta.finish_reason or delta.error
        self.error_kind = delta.error_kind if delta.error is not None else None
        if delta.timeline is not None:
            self.timelines.append(delta.timeline)

    @property
    def bits(self) -> tuple[Any, ...]:
        return tuple(self.token_ids), tuple(self.logprobs), self.end


@contextmanager
def engine_process(
    model: Path, *, watchdog_s: float = 60, faulty: bool = True, **options: Any
) -> Iterator[tuple[SupervisedClient, InputProcessor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TESTS)
        patch.setenv("PYTHONPATH", str(TESTS), prepend=":")
        module = "engine.faulty_worker" if faulty else "hotloop.engine.worker"
        engine = start_engine_process(model, options, watchdog_s=watchdog_s, module=module)
        try:
            yield engine.client, engine.inputs
        finally:
            engine.client.close()


def requests_of(inputs: InputProcessor, jobs: Sequence[Job]) -> list[list[Request]]:
    """Fresh ones, a list for each job: its choices."""
    return [inputs.ask({"prompt_token_ids": prompt}, params).requests for prompt, params in jobs]


def run(
    client: EngineClient,
    requests: Sequence[Sequence[Request]],
    meanwhile: Callable[[int, dict[RequestId, Answer]], None] = lambda num_tokens, answers: None,
) -> list[list[Answer]]:
    """Answers of all, in order. meanwhile: called after every poll, with the number of tokens so far."""
    answers = {request.request_id: Answer() for choices in requests for request in choices}
    for choices in requests:
        client.add(choices)
    while any(answer.end is None for answer in answers.values()):
        for delta in client.poll(timeout_s=20):
            answers[delta.request_id].take(delta)
        meanwhile(sum(len(answer.token_ids) for answer in answers.values()), answers)
    return [[answers[request.request_id] for request in choices] for choices in requests]


def undisturbed(model: Path, jobs: Sequence[Job], **options: Any) -> list[list[tuple[Any, ...]]]:
    """The bits of the answers of an engine in this process."""
    engine = load_engine(model, options)
    return [[answer.bits for answer in choices] for choices in run(engine.client, requests_of(engine.inputs, jobs))]


def bits(answers: Sequence[Sequence[Answer]]) -> list[list[tuple[Any, ...]]]:
    return [[answer.bits for answer in choices] for choices in answers]
