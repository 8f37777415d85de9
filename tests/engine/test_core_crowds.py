"""EngineCore over a fake model whose output shows every misplaced block: crowds, forks, aborts, a pool that is too small."""

import random
from collections.abc import Sequence

import pytest

from fakes import GROUPS, FakeRunner, make_request
from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.request import Request, RequestId, TokenDelta
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.steps import StepRecord

SAMPLED = SamplingParams(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.0,
    logprobs=2,
)  # fmt: skip
GREEDY = SamplingParams(
    temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0,
)  # fmt: skip
Output = list[tuple[tuple[int, ...], object]]


def make_core(groups: Sequence[KVGroup], num_blocks: int, prefix_caching: bool = True) -> EngineCore:
    runner = FakeRunner(KVLayout(tuple(groups), 4, "f16"), num_blocks, max_num_seqs=12, max_tokens=24)
    return EngineCore(runner, EngineConfig(enable_prefix_caching=prefix_caching))


def collect(outputs: dict[RequestId, Output], deltas: Sequence[TokenDelta]) -> None:
    for delta in deltas:
        assert delta.error is None, delta.error
        outputs.setdefault(delta.request_id, []).append((delta.token_ids, delta.logprobs))


def crowd(rng: random.Random, index: int) -> list[Request]:
    """A request, or some choices of one prompt."""
    prompt = [*[index % 3] * rng.randrange(20), *(rng.randrange(50) for _ in range(rng.randrange(1, 8)))]
    parent = f"r{index}"
    return [
        make_request(
            f"{parent}/{choice}" if choice else parent, prompt, rng.randrange(1, 25), seed=index, choice=choice,
            parent_id=parent if choice else None, params=SAMPLED if index % 2 else GREEDY,
        )
        for choice in range(rng.choice([1, 1, 3]))
    ]  # fmt: skip


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("num_blocks", "prefix_caching"), [(18, True), (18, False), (80, True)])
def test_a_crowd_is_served_as_if_each_were_alone(
    groups: tuple[KVGroup, ...], num_blocks: int, prefix_caching: bool
) -> None:  # known faults B52, B115
    rng = random.Random(num_blocks)
    core = make_core(groups, num_blocks, prefix_caching)
    requests: dict[RequestId, Request] = {}
    outputs: dict[RequestId, Output] = {}
    aborted = set()
    for index in range(25):
        new = crowd(rng, index)
        core.add(new)
        requests.update({request.request_id: request for request in new})
        collect(outputs, core.step())
        if index % 4 == 3:
            aborted.add(victim := rng.choice(sorted(requests)))
            core.abort(victim)
        if index % 5 == 4:
            core.scheduler.preempt(rng.choice(sorted(requests)))
        core.scheduler.check_invariants()
    while core.has_work:
        collect(outputs, core.step())
        core.scheduler.check_invariants()
    assert sum(request.parent_id is not None for request in requests.values()) > 10

    alone = make_core(groups, 100, prefix_caching=False)
    for request_id, request in requests.items():
        if request_id in aborted:
            continue
        twin = make_request(
            "alone", request.prompt_token_ids, request.max_tokens, seed=request.seed, choice=request.choice,
            params=request.params,
        )  # fmt: skip
        alone.add([twin])
        solo: dict[RequestId, Output] = {}
        while alone.has_work:
            collect(solo, alone.step())
        assert outputs[request_id] == solo[RequestId("alone")], request_id
    assert max(core.steps.latest()[:, StepRecord._fields.index("num_requests")]) >= 4
    if num_blocks == 18:
        assert sum(request.num_preemptions for request in requests.values()) > 0
    assert any(request.num_prefix_hit_tokens for request in requests.values()) == prefix_caching
