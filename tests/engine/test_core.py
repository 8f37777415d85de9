"""EngineCore alone: aborts in every state, and a step that fails."""

import time
from pathlib import Path
from typing import Any

import pytest

from engine.engines import make_runner
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import HotloopError
from hotloop.ops.batch import ForwardBatch
from hotloop.request import Request, RequestId, TokenDelta
from hotloop.sampling.draw import Sampler
from hotloop.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, top_p=1.0, top_k=0, min_p=0.0)


@pytest.fixture(scope="module")
def runner(model: Path) -> ModelRunner:
    return make_runner(model, max_num_batched_tokens=8)


@pytest.fixture
def core(runner: ModelRunner) -> EngineCore:
    return EngineCore(runner, runner.config)


def request(name: str, prompt_tokens: int = 20, max_tokens: int = 3) -> Request:
    return Request(RequestId(name), [5 + len(name)] * prompt_tokens, PARAMS, 0, max_tokens, frozenset())


def run(core: EngineCore) -> list[TokenDelta]:
    """All deltas until nothing is left to do."""
    deltas = []
    while core.has_work:
        deltas += core.step()
        core.scheduler.check_invariants()
    return deltas


def tokens_of(deltas: list[TokenDelta], name: str) -> list[int]:
    return [i for d in deltas if d.request_id == name for i in d.token_ids]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("name", ["a", "bb", "nobody"])
def test_an_abort_in_any_state_takes_that_request_only(
    core: EngineCore, name: str, steps: int
) -> None:  # known faults B52, B83
    """20 tokens in chunks of 8 and two more: a is prefilling, then running, then finished; bb waits for it."""
    alone = {}
    for one in ("a", "bb"):
        core.add([request(one)])
        alone[one] = tokens_of(run(core), one)
    core.add([request("a")])
    core.add([request("bb")])
    deltas = [delta for _ in range(steps) for delta in core.step()]
    for _ in range(2):  # the second finds nothing to do
        core.abort(RequestId(name))
        core.scheduler.check_invariants()
    deltas += run(core)
    for one in {"a", "bb"} - {name}:
        assert tokens_of(deltas, one) == alone[one]
        assert [d.finish_reason for d in deltas if d.request_id == one][-1] == "length"
    if name in alone:
        assert alone[name][: len(tokens_of(deltas, name))] == tokens_of(deltas, name)
    assert core.kv_cache.num_free_blocks == core.kv_cache.num_blocks


def outcomes(deltas: list[TokenDelta]) -> list[tuple[object, ...]]:
    """Deltas without their times."""
    return [delta[:5] for delta in deltas]


def test_a_pass_that_fails_once_harms_nobody(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # known fault B112
    requests = [("a", 1), ("bb", 2)]
    core.add([request(name, prompt_tokens=n) for name, n in requests])
    expected = outcomes(run(core))
    forward = core.runner.forward

    def fail_once(batch: ForwardBatch) -> Any:
        if len(batch.seq_lens) < 2:
            return forward(batch)
        monkeypatch.setattr(core.runner, "forward", forward)
        raise MemoryError("no room")

    monkeypatch.setattr(core.runner, "forward", fail_once)
    core.add([request(name, prompt_tokens=n) for name, n in requests])
    assert outcomes(run(core)) == expected
    assert "fail_once" in caplog.text  # the traceback


@pytest.mark.parametrize("at", [3, 19, 20, 21])
def test_a_request_that_breaks_the_forward_pass_ends_alone(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:  # known fault B112
    """It breaks it in its prompt's first or last chunk, or at an output token; others run beside it all the time."""
    names = ("a", "bb", "ccc")
    alone = {}
    for name in names:
        core.add([request(name)])
        alone[name] = tokens_of(run(core), name)
    assert not set(alone["bb"]) & set(alone["a"] + alone["ccc"])
    forward = core.runner.forward

    def fail(batch: ForwardBatch) -> Any:
        rows = rows_of(batch)
        if any(start <= at < end and int(batch.token_ids[i]) in (7, *alone["bb"]) for i, start, end in rows):
            raise RuntimeError("bad request")
        return forward(batch)

    core.kv_cache.reset_prefix_cache()
    monkeypatch.setattr(core.runner, "forward", fail)
    core.add([request(name) for name in names])
    deltas = run(core)
    for name in ("a", "ccc"):
        assert tokens_of(deltas, name) == alone[name]
    (failed,) = [d for d in deltas if d.error]
    assert (failed.request_id, failed.error) == ("bb", "RuntimeError: bad request")
    assert core.kv_cache.num_free_blocks == core.kv_cache.num_blocks


def rows_of(batch: ForwardBatch) -> list[tuple[int, int, int]]:
    """Per request: index of its first token, position of it, position after its last one."""
    starts = batch.query_start[:-1]
    return [(int(i), int(batch.positions[i]), int(end)) for i, end in zip(starts, batch.seq_lens, strict=True)]


def test_a_draw_that_fails_ends_its_request_and_no_other(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN logits are a row's own error; an exception out of `draw` is told apart by drawing row by row."""
    core.add([request("a"), request("ccc")])
    expected = run(core)
    draw = Sampler.draw
    for raises in (False, True):

        def break_bb(sampler: Sampler, logits: Any, rows: Any, **options: Any) -> Any:
            bad = [row.state.position for row in rows if row.state.draw_params.seed == 9]
            if bad and raises:  # noqa: B023
                raise ZeroDivisionError("in a callback")
            results = draw(sampler, logits, rows, **options)
            return [HotloopError("NaN") if r.state.draw_params.seed == 9 else d for r, d in zip(rows, results, strict=True)]

        monkeypatch.setattr(Sampler, "draw", break_bb)
        broken = request("bb")
        broken.seed = 9
        core.add([request("a"), broken, request("ccc")])
        deltas = run(core)
        for name in ("a", "ccc"):
            assert tokens_of(deltas, name) == tokens_of(expected, name)
        (failed,) = [d for d in deltas if d.error]
        assert (failed.request_id, failed.error) == ("bb", "ZeroDivisionError: in a callback" if raises else "NaN")


def test_a_step_that_breaks_the_books_ends_all_and_the_engine_lives_on(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.add([request("a"), request("bb")])
    expected = outcomes(run(core))
    core.add([request("a"), request("bb")])
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "schedule", lambda *_: 1 / 0)
        deltas = core.step()
    assert [(d.request_id, d.error) for d in deltas] == [(i, "ZeroDivisionError: division by zero") for i in ("a", "bb")]
    assert not core.has_work
    core.add([request("a"), request("bb")])
    assert outcomes(run(core)) == expected


def test_an_interrupt_is_no_failure_of_a_request(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: object) -> object:
        raise KeyboardInterrupt

    core.add([request("a"), request("bb")])
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    core.abort(RequestId("bb"))
    assert len(tokens_of(run(core), "a")) == 3


def test_a_choice_outlives_the_one_it_was_to_fork_off(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent is aborted while the step in which they part is interrupted."""

    def interrupt(batch: object) -> object:
        raise KeyboardInterrupt

    def family() -> list[Request]:
        child = request("aa", prompt_tokens=6)
        child.parent_id, child.choice = RequestId("a"), 1
        parent = request("a", prompt_tokens=6)
        parent.prompt_token_ids = list(child.prompt_token_ids)
        return [parent, child]

    core.add(family())
    expected = tokens_of(run(core), "aa")
    core.add(family())
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    core.kv_cache.reset_prefix_cache()
    core.runner.storage.pool[:] = 0xFF  # type: ignore[attr-defined]
    core.abort(RequestId("a"))
    assert tokens_of(run(core), "aa") == expected


@pytest.mark.parametrize(("owner", "method"), [("scheduler", "update"), ("steps", "append")])
def test_an_interrupt_while_the_books_change_gives_all_up(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, owner: str, method: str
) -> None:
    """Also those that the step would have ended: nobody has their tokens."""

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    core.add([request("a", prompt_tokens=4, max_tokens=1), request("bb", prompt_tokens=4)])
    with monkeypatch.context() as patch:
        patch.setattr(getattr(core, owner), method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    assert [d.error for d in core.step()] == ["the step was interrupted"] * 2
    assert not core.has_work
    core.add([request("a")])
    assert len(tokens_of(run(core), "a")) == 3


def test_a_deadline_ends_its_request_only(core: EngineCore) -> None:
    late, other = request("a"), request("bb")
    late.deadline_s = time.perf_counter() - 1
    core.add([late, other])
    deltas = run(core)
    assert [d.error for d in deltas if d.request_id == "a"] == ["the request's deadline passed"]
    assert len(tokens_of(deltas, "bb")) == 3


def test_who_expired_in_an_interrupted_step_may_have_left_since(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: object) -> object:
        raise KeyboardInterrupt

    late, other = request("a"), request("bb")
    late.deadline_s = time.perf_counter() - 1
    core.add([late, other])
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    core.abort(RequestId("a"))
    deltas = run(core)
    assert {d.request_id for d in deltas} == {"bb"}
    assert len(tokens_of(deltas, "bb")) == 3
