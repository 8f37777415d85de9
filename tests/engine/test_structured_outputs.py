"""Answers with a form, through the engine: whatever the model prefers and whatever else a request asks for."""

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import assert_core_idle, assert_idle, exit_code, make_runner
from engine.jobs import GRAMMAR, SCHEMA
from hotloop import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from hotloop.engine.core import EngineCore
from hotloop.engine.resume import Resume
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import CompletionOutput, Request, RequestId, TokenDelta
from hotloop.sampling import grammar
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile

PROMPT = "x y"
REGEX = StructuredOutputsParams(regex="[a-f]{3}( the)* end")
CHOICE = StructuredOutputsParams(choice=["yes", "no", "not at all"])
AMBIGUOUS = StructuredOutputsParams(grammar='start: start start start | start start | "x" | "x" "x"?')


def holds(spec: StructuredOutputsParams, text: str) -> bool:
    if spec is SCHEMA:
        value = json.loads(text)
        return list(value) == ["name", "tags", "n"] and len(value["name"]) <= 6 and abs(value["n"]) <= 50
    if spec is GRAMMAR:
        return re.fullmatch(r"(the [a-e()]+\n)+", text) is not None and text.count("(") == text.count(")")
    return text in ("yes", "no", "not at all") if spec is CHOICE else re.fullmatch(r"[a-f]{3}( the)* end", text) is not None


def answers(llm: LLM, spec: StructuredOutputsParams, **params: Any) -> list[CompletionOutput]:
    params = {"temperature": 1.0, "seed": 1, "max_tokens": 100, "structured_outputs": spec, **params}
    outputs = llm.generate(PROMPT, SamplingParams(**params))[0].outputs
    assert_idle(llm)
    return outputs


@pytest.mark.parametrize(
    "params",
    [
        {}, {"n": 4, "seed": 2}, {"temperature": 0}, {"temperature": 5.0, "n": 3}, {"ignore_eos": True}, {"min_tokens": 60},
        {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "presence_penalty": -2.0, "n": 2},
        {"logprobs": 3, "top_k": 2, "top_p": 0.5, "min_p": 0.5},
        {"stop_token_ids": [ord("b"), ord("5")]},
        {"logit_bias": {264: 50, 265: 50, 266: 50, 270: 100, ord("}"): -100}},  # control and unused tokens
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("spec", [SCHEMA, GRAMMAR, REGEX, CHOICE], ids=["schema", "grammar", "regex", "choice"])
def test_every_finished_answer_has_its_form(
    llm: LLM, spec: StructuredOutputsParams, params: dict[str, Any]
) -> None:  # known faults B70, B72, B73
    for choice in answers(llm, spec, **params):
        if choice.finish_reason == "length":  # the list of a grammar may go on
            assert spec in (GRAMMAR, REGEX)
            assert len(choice.token_ids) == 100
            continue
        assert holds(spec, choice.text), choice.text
        assert choice.finish_reason == "stop"
        if "logprobs" in params:
            assert choice.logprobs is not None
            assert len(choice.logprobs) == len(choice.token_ids)
    first = answers(llm, spec, **{**params, "n": 1})[0]
    assert first == answers(llm, spec, **params)[0]


def test_a_complete_answer_ends_with_its_last_token(llm: LLM) -> None:
    choice = answers(llm, CHOICE, ignore_eos=True)[0]
    assert choice.text in ("yes", "no", "not at all")
    assert llm.tokenizer.decode(choice.token_ids) == choice.text
    assert choice.stop_reason is None
    chunks = list(llm.stream(PROMPT, SamplingParams(seed=1, structured_outputs=CHOICE, ignore_eos=True)))
    assert "".join(chunk.text for chunk in chunks) == choice.text


def test_max_tokens_and_stop_strings_cut_it(llm: LLM) -> None:
    assert answers(llm, SCHEMA, max_tokens=3)[0].finish_reason == "length"
    choice = answers(llm, SCHEMA, stop="tags")[0]
    assert (choice.text[-1], choice.finish_reason, choice.stop_reason) == ('"', "stop", "tags")


def test_parameters_that_leave_nothing_end_that_request_only(llm: LLM) -> None:
    """Every token that the form allows is a stop token, and it is not complete; a plain request runs beside it."""
    stuck = SamplingParams(temperature=0, structured_outputs=CHOICE, stop_token_ids=[ord("y"), ord("n"), ord("o"), ord("e")])
    plain = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = llm.generate(PROMPT, plain)[0].outputs[0]
    results = dict(llm.answer_each([("stuck", PROMPT, stuck), ("plain", PROMPT, plain)]))
    assert isinstance(results["stuck"], HotloopError)
    assert not isinstance(results["plain"], HotloopError)
    assert results["plain"].outputs[0] == expected
    assert_idle(llm)


def test_a_grammar_that_becomes_too_complex_ends_that_request_only(llm: LLM) -> None:
    plain = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = llm.generate(PROMPT, plain)[0].outputs[0]
    wild = SamplingParams(max_tokens=None, ignore_eos=True, structured_outputs=AMBIGUOUS)
    results = dict(llm.answer_each([("wild", PROMPT, wild), ("plain", PROMPT, plain)]))
    assert "items" in str(results["wild"])
    assert not isinstance(results["plain"], HotloopError)
    assert results["plain"].outputs[0] == expected
    assert_idle(llm)


@pytest.mark.parametrize("spec", [SCHEMA, GRAMMAR], ids=["schema", "grammar"])
def test_resumed_after_any_token_it_says_the_rest(llm: LLM, spec: StructuredOutputsParams) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=60, structured_outputs=spec, logprobs=1)
    whole = llm.generate(PROMPT, params)[0]
    ids = whole.outputs[0].token_ids
    for i in range(len(ids)):
        *_, last = llm.resume(Resume(whole.prompt_token_ids, ids[:i], params, 4))
        assert last.output is not None
        assert last.output.outputs[0].token_ids == ids
        assert last.output.outputs[0].text == whole.outputs[0].text
    with pytest.raises(HotloopError, match="cannot go on"):
        list(llm.resume(Resume(whole.prompt_token_ids, [ord("x")], params, 4)))
    assert_idle(llm)


def test_a_form_that_cannot_be_enforced_never_runs(llm: LLM) -> None:  # known faults B65, B66
    for bad in (StructuredOutputsParams(regex="(["), StructuredOutputsParams(json={"type": "nonsense"})):
        params = SamplingParams(structured_outputs=bad)
        with pytest.raises(InvalidRequestError, match="structured_outputs"):
            llm.generate(PROMPT, params)
        with pytest.raises(InvalidRequestError, match="structured_outputs"):
            llm.resume(Resume([5], [6], params, 1)).__next__()
    assert_idle(llm)


def test_async(model: Path) -> None:
    async def answer() -> str:
        async with AsyncLLM(model) as llm:
            output = await llm.answer(PROMPT, SamplingParams(seed=1, max_tokens=100, structured_outputs=SCHEMA))
            return output.outputs[0].text

    assert holds(SCHEMA, asyncio.run(answer()))


def test_in_a_forked_process(llm: LLM) -> None:
    answers(llm, CHOICE)
    child = os.fork()
    if not child:
        os._exit(0 if holds(CHOICE, answers(llm, CHOICE)[0].text) else 1)
    assert exit_code(child) == 0


# ---- compiling in the engine's process ----------------------------------------------------------------------------------


class SlowCompiler(GrammarCompiler):
    """Compiles when it is let, and refuses what the client's compiler let through if told so."""

    go: threading.Event
    refuses = False

    def compile(self, spec: StructuredOutputsParams) -> grammar.Grammar:
        assert self.go.wait(30)
        if self.refuses:
            raise InvalidRequestError("another version")
        return super().compile(spec)


@pytest.fixture
def slow(model: Path) -> Iterator[tuple[EngineCore, SlowCompiler]]:
    with GGUFFile.open(model) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    compiler = SlowCompiler(lambda: tokenizer)
    compiler.go = threading.Event()
    runner = make_runner(model)
    yield EngineCore(runner, runner.config, grammars=compiler), compiler
    compiler.go.set()


def request(name: str, parent: str | None = None, choice: int = 0, **params: Any) -> Request:
    sampling = SamplingParams(**{"temperature": 1.0, **params}).with_defaults({})
    parent_id = None if parent is None else RequestId(parent)
    return Request(
        RequestId(name), [5, 6, 7], sampling, 1, params.get("max_tokens", 4), frozenset(), parent_id=parent_id, choice=choice
    )


def run(core: EngineCore) -> dict[str, list[TokenDelta]]:
    deltas: dict[str, list[TokenDelta]] = {}
    while core.has_work:
        for delta in core.step():
            deltas.setdefault(delta.request_id, []).append(delta)
        core.scheduler.check_invariants()
    assert_core_idle(core)
    return deltas


def test_others_go_on_while_a_grammar_is_compiled(slow: tuple[EngineCore, SlowCompiler]) -> None:
    core, compiler = slow
    core.add([request("form", structured_outputs=CHOICE), request("form/1", "form", 1, structured_outputs=CHOICE)])
    core.add([request("plain")])
    deltas: list[TokenDelta] = []
    while not any(delta.finish_reason for delta in deltas):
        deltas += core.step()
    assert {delta.request_id for delta in deltas} == {"plain"}
    threading.Timer(0.05, compiler.go.set).start()
    begin_s = time.process_time()
    assert run(core).keys() == {"form", "form/1"}
    assert time.process_time() - begin_s < 5, "it waits for the compiler without turning"


def test_aborted_while_its_grammar_is_compiled(slow: tuple[EngineCore, SlowCompiler]) -> None:
    core, compiler = slow
    core.add([request("form", structured_outputs=CHOICE), request("form/1", "form", 1, structured_outputs=CHOICE)])
    core.add([request("other", structured_outputs=REGEX)])
    core.step()
    core.abort(RequestId("form"))
    core.abort(RequestId("other"))
    assert core.has_work
    compiler.go.set()
    assert run(core).keys() == {"form/1"}


def test_a_grammar_that_only_the_engine_refuses_ends_its_requests(slow: tuple[EngineCore, SlowCompiler]) -> None:
    core, compiler = slow
    compiler.refuses = True
    core.add([request("form", structured_outputs=CHOICE), request("plain", parent=None)])
    compiler.go.set()
    deltas = run(core)
    assert {name: delta.error for name, (delta, *_) in deltas.items()} == dict.fromkeys(("form", "plain"), "another version")
    compiler.refuses = False
    core.add([request("form", structured_outputs=CHOICE)])
    assert run(core)["form"][-1].finish_reason is not None


def test_all_are_given_up_while_a_grammar_is_compiled(
    slow: tuple[EngineCore, SlowCompiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, compiler = slow
    core.add([request("form", structured_outputs=CHOICE)])
    core.add([request("plain")])
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "update", lambda *_: 1 // 0)
        assert {delta.request_id for delta in core.step() if delta.error} == {"form", "plain"}
    compiler.go.set()
    core.add([request("form", structured_outputs=CHOICE)])
    assert run(core).keys() == {"form"}


def test_an_engine_without_a_tokenizer_refuses(model: Path) -> None:
    runner = make_runner(model)
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        EngineCore(runner, runner.config).add([request("form", structured_outputs=CHOICE)])


def test_masks_of_an_interrupted_step_are_made_again(
    slow: tuple[EngineCore, SlowCompiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the forward pass, and after the draw: the tokens are those of an engine that nobody interrupts."""
    core, compiler = slow
    compiler.go.set()
    core.add([request("form", structured_outputs=SCHEMA, max_tokens=40)])
    expected = [i for delta in run(core)["form"] for i in delta.token_ids]
    forward, draw = core.runner.forward, core._drawer.finish
    calls = [0]

    def interrupted(what: Any) -> Any:
        def call(*args: Any) -> Any:
            result = what(*args)
            calls[0] += 1
            if calls[0] % 3 == 0:
                raise KeyboardInterrupt
            return result

        return call

    monkeypatch.setattr(core.runner, "forward", interrupted(forward))
    monkeypatch.setattr(core._drawer, "finish", interrupted(draw))
    core.add([request("form", structured_outputs=SCHEMA, max_tokens=40)])
    tokens: list[int] = []
    interrupts = 0
    while core.has_work:
        try:
            tokens += [i for delta in core.step() for i in delta.token_ids]
        except KeyboardInterrupt:
            interrupts += 1
    assert tokens == expected
    assert interrupts > 5


def test_masks_are_of_their_rows(llm: LLM) -> None:
    """Many forms together, one for each request: every answer has its own."""
    words = [f"{a}{b}" for a in "abcdef" for b in "ghijkl"]
    specs = [StructuredOutputsParams(choice=[word]) for word in words]
    outputs = llm.generate([PROMPT] * len(words), [SamplingParams(structured_outputs=spec) for spec in specs])
    assert [output.outputs[0].text for output in outputs] == words
    assert np.all([output.outputs[0].finish_reason == "stop" for output in outputs])
    assert_idle(llm)
