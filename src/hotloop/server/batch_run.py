"""run_batch: answers the lines of a batch file that its output does not hold yet, all of them together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hotloop.engine.fingerprint import system_fingerprint
from hotloop.engine.inputs import Prompt
from hotloop.engine.llm import LLM
from hotloop.errors import CapacityError, HotloopError, InvalidRequestError
from hotloop.request import RequestOutput
from hotloop.sampling_params import SamplingParams
from hotloop.server.batch_file import BatchLine, BatchOutput, read_batch
from hotloop.server.bodies import Body, prompts_of
from hotloop.server.responses import Head, chat_response, completion_response


@dataclass(slots=True)
class BatchCounts:
    """Lines answered and lines that ended with an error in this run, lines that an earlier run had answered."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def finished(self) -> int:
        return self.answered + self.failed + self.skipped


class Progress(Protocol):
    def __call__(self, counts: BatchCounts) -> None:
        """A line was finished."""


@dataclass(slots=True, eq=False)
class _Line:
    """A line on its way: an output for each of its prompts."""

    line: BatchLine
    body: Body
    outputs: list[RequestOutput | None]
    error: HotloopError | None = None
    num_missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_missing = len(self.outputs)


Job = tuple[tuple[_Line, int], Prompt, SamplingParams]


def run_batch(llm: LLM, source: Path, output: BatchOutput, model: str | None, progress: Progress) -> BatchCounts:
    """model: the name that answers carry; None for the one each line asks for, which must then be the same in all."""
    counts = BatchCounts()
    fingerprint = system_fingerprint(llm.path, llm.config)
    named: list[str] = [] if model is None else [model]

    def jobs() -> Iterator[Job]:
        for line in read_batch(source):
            if line.key in output.done:
                counts.skipped += 1
                progress(counts)
                continue
            try:
                yield from _jobs_of(line)
            except HotloopError as error:
                fail(line, error)

    def _jobs_of(line: BatchLine) -> Iterator[Job]:
        if line.body is None:
            raise InvalidRequestError(line.error or "")
        asked = line.body.model
        if model is None:
            if asked is None:
                raise InvalidRequestError("model is missing; name it in the body, or for all lines with --model")
            if named and asked != named[0]:
                raise InvalidRequestError(f"model is {asked!r:.60}; the lines before it ask for {named[0]!r}: one per run")
            named[:] = [asked]
        prompts = prompts_of(line.body)
        entry = _Line(line, line.body, [None] * len(prompts))
        for index, prompt in enumerate(prompts):
            yield (entry, index), prompt, line.body.params

    def fail(line: BatchLine, error: HotloopError) -> None:
        at_fault = isinstance(error, InvalidRequestError | CapacityError)
        output.write_error(line, str(error), status=400 if at_fault else 500)
        counts.failed += 1
        progress(counts)

    for (entry, index), answer in llm.answer_each(jobs()):
        entry.num_missing -= 1
        if isinstance(answer, HotloopError):
            entry.error = entry.error or answer
        else:
            entry.outputs[index] = answer
        if entry.num_missing:
            continue
        outputs = [o for o in entry.outputs if o is not None]
        if entry.error is not None:
            fail(entry.line, entry.error)
            continue
        _write(llm, output, entry, outputs, named[0], fingerprint)
        counts.answered += 1
        counts.prompt_tokens += sum(len(o.prompt_token_ids) for o in outputs)
        counts.completion_tokens += sum(len(choice.token_ids) for o in outputs for choice in o.outputs)
        progress(counts)
    return counts


def _write(
    llm: LLM, output: BatchOutput, entry: _Line, outputs: list[RequestOutput], model: str, fingerprint: str
) -> None:
    request_id, created_s = str(outputs[0].request_id), int(time.time())
    if entry.body.chat is not None:
        head = Head(f"chatcmpl-{request_id}", created_s, model, fingerprint)
        body = chat_response(head, outputs[0], entry.body, llm.tokenizer)
    else:
        head = Head(f"cmpl-{request_id}", created_s, model, fingerprint)
        body = completion_response(head, outputs, entry.body, llm.tokenizer)
    output.write_answer(entry.line, request_id, body)
