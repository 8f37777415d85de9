"""Draft tokens through the engine: fewer steps, the same answers, and what comes of drafts that are odd."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import assert_core_idle, assert_idle
from engine.jobs import GRAMMAR, SCHEMA, Exercised
from hotloop import LLM, Resume, SamplingParams, StructuredOutputsParams
from hotloop.engine.core import EngineCore
from hotloop.errors import InvalidRequestError
from hotloop.request import Request, RequestId, TokenDelta
from hotloop.sampling.constraint import Constraint
from hotloop.sampling.edits import TokenCounts
from hotloop.spec_decode.proposer import MAX_DRAFT_TOKENS, Drafting
from tiny_models import random_tokens

PROMPT = "x y"
WORDY = StructuredOutputsParams(regex="[ab]{2}: the end of the story is (good|bad), and that is all")
FORMED = SamplingParams(temperature=1.0, seed=3, max_tokens=90, structured_outputs=SCHEMA, logprobs=2)
PLAIN = SamplingParams(temperature=0.9, seed=5, max_tokens=20, logprobs=1, ignore_eos=True)


@pytest.fixture(scope="module")
def undrafted(model: Path) -> LLM:
    return LLM(model, speculation="none")


class Drafts:
    """Proposes what a function of the request says."""

    def __init__(self, of: Callable[[Request], Sequence[int]]) -> None:
        self._of = of
        self.num_asked = 0

    def serves(self, request: Request, constraint: Constraint | None) -> bool:
        return True

    def propose(self, wanted: Sequence[Drafting]) -> list[Sequence[int]]:
        self.num_asked += len(wanted)
        return [self._of(w.request) for w in wanted]


def drafting(model: Path, of: Callable[[Request], Sequence[int]], **config: Any) -> tuple[LLM, Drafts]:
    llm = LLM(model, **config)
    llm._core._proposer = proposer = Drafts(of)
    return llm, proposer


def deltas_of(core: EngineCore, requests: Sequence[Request]) -> dict[str, list[TokenDelta]]:
    core.add(requests)
    deltas: dict[str, list[TokenDelta]] = {}
    while core.has_work:
        for delta in core.step():
            deltas.setdefault(delta.request_id, []).append(delta)
        core.scheduler.check_invariants()
    assert_core_idle(core)
    return deltas


def tokens(deltas: Sequence[TokenDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


# ---- forced tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("spec", [SCHEMA, GRAMMAR, WORDY], ids=["schema", "grammar", "wordy"])
def test_forced_tokens_change_nothing_but_the_number_of_steps(
    model: Path, undrafted: LLM, spec: StructuredOutputsParams, n: int
) -> None:
    llm = LLM(model)
    params = replace(FORMED, structured_outputs=spec, n=n)
    output, expected = llm.generate(PROMPT, params)[0], undrafted.generate(PROMPT, params)[0]
    assert output.outputs == expected.outputs
    timings, plain = output.timings, expected.timings
    assert timings is not None
    assert plain is not None
    assert plain["decode_steps"] == plain["drawn_tokens"] - 1 == timings["drawn_tokens"] - 1
    saved = plain["decode_steps"] - timings["decode_steps"]
    assert timings["accepted_tokens"] - saved in (0, 1), "where the last token is a draft there is no bonus token"
    assert timings["accepted_tokens"] == timings["draft_tokens"], "what is forced is drawn"
    assert plain["draft_tokens"] == 0
    assert timings["accepted_tokens"] > (10 if spec is WORDY else 0)
    assert Exercised(llm._core).draft_tokens >= timings["draft_tokens"]
    assert Exercised(llm._core).accepted_tokens == Exercised(llm._core).draft_tokens
    assert_idle(llm)


@pytest.mark.parametrize(
    "params",
    [
        {"stop": "end of"}, {"stop": ["the story", "end of the"], "include_stop_str_in_output": True},
        {"stop": "story", "min_tokens": 30}, {"stop": "f the s", "min_tokens": 14},
        *({"max_tokens": n} for n in (1, 2, 3, 4, 9, 17, 18, 19)),
        {"stop_token_ids": [ord("e"), ord(",")]}, {"bad_words": ["story"]}, {"logprobs_mode": "processed", "top_k": 3},
        {"temperature": 0, "repetition_penalty": 3.0}, {"mirostat": 2}, {"mirostat": 2, "temperature": 0},
        {"prompt_logprobs": 2},
    ],
    ids=repr,
)  # fmt: skip
def test_whatever_else_the_request_asks_for(
    model: Path, undrafted: LLM, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Ends of every kind inside the drafts; text, ids, logprobs and reasons are cut at one place."""
    request = replace(FORMED, structured_outputs=WORDY, **params)
    llm = LLM(model)
    answers = []
    for one in (llm, undrafted):
        try:
            answers.append(one.generate(PROMPT, request)[0].outputs)
        except InvalidRequestError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    if isinstance(answers[0], str):
        return
    chunks = list(llm.stream(PROMPT, request))
    (whole,) = answers[0]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [i for chunk in chunks for i in chunk.token_ids] == whole.token_ids
    assert [e for chunk in chunks for e in chunk.logprobs or ()] == whole.logprobs
    assert not caplog.records, "nothing failed on the way"
    if (request.mirostat and request.temperature) or request.max_tokens in (1, 2):
        assert Exercised(llm._core).draft_tokens == 0


def test_resumed_between_any_two_tokens(model: Path, undrafted: LLM) -> None:
    whole = undrafted.generate(PROMPT, FORMED)[0]
    ids = whole.outputs[0].token_ids
    llm = LLM(model)
    for i in range(len(ids)):
        *_, last = llm.resume(Resume(whole.prompt_token_ids, ids[:i], FORMED, 3))
        assert last.output is not None
        assert last.output.outputs[0].token_ids == ids
        assert last.output.outputs[0].text == whole.outputs[0].text
    assert Exercised(llm._core).accepted_tokens > 50
    assert_idle(llm)


def test_drafts_are_within_the_budget_and_others_go_on(model: Path, undrafted: LLM) -> None:
    """Few tokens beside decodes: that goes for drafts as well. Where all have drafts nobody else waits."""
    llm = LLM(model, prefill_tokens_beside_decodes=3)
    params = [replace(FORMED, structured_outputs=WORDY, seed=i) for i in range(4)]
    both = [*params, PLAIN]
    assert [o.outputs for o in llm.generate([PROMPT] * 5, both)] == [
        o.outputs for o in undrafted.generate([PROMPT] * 5, both)
    ]
    steps = llm._core.steps.latest()
    beside = steps[(steps[:, 6] == 5) & (steps[:, 8] == 5)]
    assert beside[:, 11].max() == 3
    llm = LLM(model, prefill_tokens_beside_decodes=3, max_num_batched_tokens=24)
    llm.generate([PROMPT] * 4, params)
    steps = llm._core.steps.latest()
    assert (steps[:, 7] + steps[:, 8] + steps[:, 11]).max() == 24


def test_the_first_in_order_get_the_rows_there_are(model: Path) -> None:
    llm = LLM(model)
    outputs = llm.generate([PROMPT] * 5, [replace(FORMED, structured_outputs=WORDY, seed=i) for i in range(5)])
    assert Exercised(llm._core).draft_tokens > 100
    assert llm._core.steps.latest()[:, 11].max() == llm._runner.max_draft_tokens == 32
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs)


# ---- drafts from elsewhere ----------------------------------------------------------------------------------------------


def repeats(request: Request) -> list[int]:
    """What followed the latest token the last time."""
    ids = request.token_ids(0, request.num_tokens)
    for i in range(len(ids) - 2, -1, -1):
        if ids[i] == ids[-1]:
            return ids[i + 1 : i + 1 + MAX_DRAFT_TOKENS]
    return []


def test_rows_of_requests_with_drafts_and_without_are_told_apart(model: Path, undrafted: LLM) -> None:
    """32 requests, half of them repetitive, with drafts found in their own text. Known faults B64, B118."""
    prompts = [random_tokens(i, 4) * 6 if i % 2 else random_tokens(i, 20) for i in range(32)]
    params = [replace(PLAIN, seed=i, temperature=0 if i % 4 else 0.7, max_tokens=12 + i) for i in range(32)]
    expected = [o.outputs for o in undrafted.generate(prompts, params)]
    llm, _ = drafting(model, repeats, max_num_batched_tokens=96)
    assert [o.outputs for o in llm.generate(prompts, params)] == expected
    exercised = Exercised(llm._core)
    assert exercised.accepted_tokens > 10
    assert exercised.draft_tokens - exercised.accepted_tokens > 100
    assert exercised.largest_batch == 32
    assert_idle(llm)


@pytest.mark.parametrize("bad", [[-1], [10**6], [-1, 5], [5, -1], list(range(100)), []], ids=lambda bad: str(bad)[:12])
def test_drafts_that_are_no_tokens_or_too_many(
    model: Path, undrafted: LLM, bad: list[int]
) -> None:  # known fault B119
    llm, proposer = drafting(model, lambda request: bad)
    assert llm.generate(PROMPT, PLAIN)[0].outputs == undrafted.generate(PROMPT, PLAIN)[0].outputs
    assert proposer.num_asked > 10
    assert llm._core.steps.latest()[:, 11].max() == (MAX_DRAFT_TOKENS if len(bad) > 16 else bad == [5, -1])


def test_drafts_of_requests_that_are_preempted_or_skipped_are_forgotten(model: Path, undrafted: LLM) -> None:
    """A small pool: known fault B119. No id but the vocabulary's ever reaches the model."""
    prompts = [random_tokens(i, 10) for i in range(10)]
    params = [replace(PLAIN, seed=i, max_tokens=50) for i in range(10)]
    expected = [o.outputs for o in undrafted.generate(prompts, params)]
    known = {tuple(p): e[0].token_ids for p, e in zip(prompts, expected, strict=True)}

    def half_right(request: Request) -> list[int]:
        begin = len(request.output_token_ids)
        return [*known[tuple(request.prompt_token_ids)][begin : begin + begin % 7], 7, 7, 7]

    llm, _ = drafting(model, half_right, kv_cache_memory_bytes=9 * 16 * 256)
    forward, seen = llm._runner.forward, []

    def checked(batch: Any) -> Any:
        seen.append((int(batch.token_ids.min()), int(batch.token_ids.max())))
        return forward(batch)

    llm._core.runner.forward = checked  # type: ignore[method-assign]
    assert [o.outputs for o in llm.generate(prompts, params)] == expected
    assert Exercised(llm._core).preemptions > 0
    assert Exercised(llm._core).accepted_tokens > 50
    low, high = np.array(seen).T
    assert low.min() >= 0
    assert high.max() < llm._runner.vocab_size
    assert_idle(llm)


def test_a_stop_token_among_right_drafts_ends_it(model: Path, undrafted: LLM) -> None:
    """Also with min_tokens, before which it is not drawn, so that the draft is wrong."""
    prompt = random_tokens(1, 9)
    ids = undrafted.generate([prompt], PLAIN)[0].outputs[0].token_ids
    llm, _ = drafting(model, lambda request: ids[len(request.output_token_ids) :])
    for at in range(1, 18):
        for least in (0, at + 1, 20):
            params = replace(PLAIN, stop_token_ids=[ids[at]], min_tokens=least)
            output = llm.generate([prompt], params)[0].outputs
            assert output == undrafted.generate([prompt], params)[0].outputs
            assert least or len(output[0].token_ids) <= at + 1
    assert Exercised(llm._core).accepted_tokens > 100


def test_a_request_alone_in_a_pool_of_its_size(model: Path, undrafted: LLM) -> None:
    """Blocks of rejected drafts are given back: it can always go on."""
    params = replace(PLAIN, max_tokens=100)
    llm, _ = drafting(model, lambda request: [9] * 16, kv_cache_memory_bytes=7 * 16 * 256, block_size=4)
    assert llm.info.max_request_tokens == 7 * 16 + 1
    prompt = random_tokens(1, 13)
    assert llm.generate([prompt], params)[0].outputs == undrafted.generate([prompt], params)[0].outputs
    assert Exercised(llm._core).draft_tokens > 500


def test_a_proposer_that_fails_costs_nothing_but_drafts(
    model: Path, undrafted: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    llm, _ = drafting(model, lambda request: [1 // 0])
    assert llm.generate(PROMPT, PLAIN)[0].outputs == undrafted.generate(PROMPT, PLAIN)[0].outputs
    assert "ZeroDivisionError" in caplog.text


def test_rejected_drafts_never_enter_the_prefix_cache(model: Path, undrafted: LLM) -> None:
    """The next prompt is the answer followed by the very drafts that were wrong."""
    llm, _ = drafting(model, lambda request: [9] * 16, block_size=4)
    first = llm.generate(PROMPT, PLAIN)[0]
    ids = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    for end in range(len(ids) - 8, len(ids)):
        again = [*ids[:end], *[9] * 12]
        output = llm.generate([again], PLAIN)[0]
        assert output.outputs == undrafted.generate([again], PLAIN)[0].outputs
        assert output.num_cached_tokens <= end + 12


def test_an_error_behind_the_first_row_comes_when_its_turn_comes(model: Path, undrafted: LLM) -> None:
    """All that was drawn before it is delivered, as without drafts; and a wrong draft's error is nobody's."""
    stuck = SamplingParams(
        temperature=0, max_tokens=90, stop_token_ids=[ord("s")], structured_outputs=StructuredOutputsParams(choice=["the best"])
    )
    results = []
    for llm in (undrafted, LLM(model)):
        (request,) = llm._inputs.ask(PROMPT, stuck).requests
        deltas = deltas_of(llm._core, [request])[request.request_id]
        assert deltas[-1].error is not None
        results.append((tokens(deltas), deltas[-1].error, deltas[-1].error_kind))
    assert results[0] == results[1]
    assert len(results[0][0]) >= 2


def test_an_interrupted_step_is_done_again_with_its_drafts(
    model: Path, undrafted: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the forward pass and after the draw."""
    (request,) = undrafted._inputs.ask(PROMPT, FORMED).requests
    expected = tokens(deltas_of(undrafted._core, [request])[request.request_id])
    core = LLM(model)._core
    calls = [0]

    def interrupted(what: Any) -> Any:
        def call(*args: Any) -> Any:
            result = what(*args)
            calls[0] += 1
            if calls[0] % 3 == 0:
                raise KeyboardInterrupt
            return result

        return call

    monkeypatch.setattr(core.runner, "forward", interrupted(core.runner.forward))
    monkeypatch.setattr(core._drawer, "finish", interrupted(core._drawer.finish))
    (request,) = undrafted._inputs.ask(PROMPT, FORMED).requests
    core.add([request])
    got: list[int] = []
    interrupts = 0
    while core.has_work:
        try:
            got += tokens(core.step())
        except KeyboardInterrupt:
            interrupts += 1
    assert got == expected
    assert interrupts > 5
    assert Exercised(core).accepted_tokens > 3


def test_an_interrupt_leaves_no_drafts_in_the_penalties(
    model: Path, undrafted: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while they are taken back."""
    params = replace(PLAIN, frequency_penalty=0.5, allowed_token_ids=range(30, 35))
    expected = undrafted.generate(PROMPT, params)[0].outputs[0].token_ids
    llm, _ = drafting(model, lambda request: [30, 31, 30])
    calls = [0]
    remove = TokenCounts.remove

    def interrupted(counts: TokenCounts, token_id: int) -> None:
        calls[0] += 1
        if calls[0] % 7 == 0:
            raise KeyboardInterrupt
        remove(counts, token_id)

    monkeypatch.setattr(TokenCounts, "remove", interrupted)
    (request,) = llm._inputs.ask(PROMPT, params).requests
    llm._core.add([request])
    got: list[int] = []
    while llm._core.has_work:
        with suppress(KeyboardInterrupt):
            got += tokens(llm._core.step())
    assert got == expected
    assert calls[0] > 50


def test_a_failing_forward_pass_with_drafts_ends_its_request_only(model: Path, undrafted: LLM) -> None:
    llm = LLM(model)
    expected = undrafted.generate(PROMPT, FORMED)[0].outputs
    forward = llm._runner.forward
    raised = []

    def fail_sometimes(batch: Any) -> Any:
        if len(batch.seq_lens) > 1 and len(batch.logits_rows) > len(batch.seq_lens) and len(raised) < 3:
            raised.append(1)
            raise RuntimeError("once")
        return forward(batch)

    llm._core.runner.forward = fail_sometimes  # type: ignore[method-assign]
    outputs = llm.generate([PROMPT] * 2, [FORMED, replace(PLAIN, max_tokens=60)])
    assert outputs[0].outputs == expected
    assert len(raised) == 3


def test_an_abort_with_drafts_under_way(model: Path) -> None:
    llm, _ = drafting(model, lambda request: [9] * 5)
    (request,) = llm._inputs.ask(PROMPT, PLAIN).requests
    core = llm._core
    core.add([request])
    for _ in range(4):
        core.step()
    core.abort(RequestId(request.request_id))
    core.step()
    assert_core_idle(core)


def test_an_abort_in_an_interrupted_step_takes_its_drafts_along(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: object) -> object:
        raise KeyboardInterrupt

    llm, _ = drafting(model, lambda request: [9] * 5)
    core = llm._core
    requests = [*llm._inputs.ask(PROMPT, PLAIN).requests, *llm._inputs.ask(PROMPT, PLAIN).requests]
    core.add(requests)
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    core.abort(requests[0].request_id)
    core.step()
    record = core.steps.last
    assert record is not None
    assert (record.num_requests, record.num_decode_tokens, record.num_draft_tokens, record.num_prefill_tokens) == (1, 1, 5, 0)
