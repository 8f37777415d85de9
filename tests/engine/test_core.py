"""EngineCore alone: aborts in every state, and a step that fails."""

from pathlib import Path

import pytest

from engine.engines import make_runner
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.request import Request, RequestId, TokenDelta
from hotloop.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, top_p=1.0, top_k=0, min_p=0.0)


@pytest.fixture(scope="module")
def runner(model: Path) -> ModelRunner:
    return make_runner(model, max_num_batched_tokens=8)


@pytest.fixture
def core(runner: ModelRunner) -> EngineCore:
    return EngineCore(runner)


def request(name: str, prompt_tokens: int = 20, max_tokens: int = 3) -> Request:
    return Request(RequestId(name), [5 + len(name)] * prompt_tokens, PARAMS, 0, max_tokens, frozenset())


def run(core: EngineCore) -> list[TokenDelta]:
    """All deltas until nothing is left to do."""
    deltas = []
    while core.has_work:
        deltas += core.step()
        core.kv_cache.check_invariants()
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
        core.add(request(one))
        alone[one] = tokens_of(run(core), one)
    core.add(request("a"))
    core.add(request("bb"))
    deltas = [delta for _ in range(steps) for delta in core.step()]
    for _ in range(2):  # the second finds nothing to do
        core.abort(RequestId(name))
        core.kv_cache.check_invariants()
    deltas += run(core)
    for one in {"a", "bb"} - {name}:
        assert tokens_of(deltas, one) == alone[one]
        assert [d.finish_reason for d in deltas if d.request_id == one][-1] == "length"
    if name in alone:
        assert alone[name][: len(tokens_of(deltas, name))] == tokens_of(deltas, name)
    assert core.kv_cache.num_free_blocks == core.kv_cache.num_blocks


def test_a_step_that_fails_ends_its_request_and_no_other(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # known fault B112
    core.add(request("bb"))
    alone = run(core)
    forward = core.runner.forward

    def fail_once(batch: object) -> object:
        monkeypatch.setattr(core.runner, "forward", forward)
        raise MemoryError("no room")

    monkeypatch.setattr(core.runner, "forward", fail_once)
    core.add(request("a"))
    core.add(request("bb"))
    failed, *others = run(core)
    assert (failed.request_id, failed.token_ids, failed.error) == ("a", (), "MemoryError: no room")
    assert others == alone
    assert core.kv_cache.num_free_blocks == core.kv_cache.num_blocks
    assert "fail_once" in caplog.text  # the traceback


def test_an_interrupt_is_no_failure_of_a_request(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: object) -> object:
        raise KeyboardInterrupt

    core.add(request("a"))
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    assert len(tokens_of(run(core), "a")) == 3
