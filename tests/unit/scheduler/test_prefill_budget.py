"""While others decode, prompts take few tokens of a step; without decodes, and by default, all there are."""

from fakes import make_request
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.policies import FewBesideDecodes, Policies
from hotloop.scheduler.scheduler import Scheduler

LAYOUT = KVLayout((KVGroup((0,), 1, 16),), 4, "f16")


def chunks(beside_decodes: int | None) -> tuple[list[int], list[int]]:
    """Chunks of a prompt of 100 tokens in an empty engine, and of another one beside its decode."""
    policies = Policies(prefill_budget=FewBesideDecodes(beside_decodes))
    scheduler = Scheduler(KVCacheManager(LAYOUT, 1000), SchedulerLimits(4, 32, 512), policies)
    alone, beside = [], []
    scheduler.add([make_request("a", range(100), 200)])
    for step in range(100):
        output = scheduler.schedule(0.0)
        if step == 6:
            scheduler.add([make_request("b", range(100, 200), 8)])
        for s in output.scheduled:
            if s.request.request_id == "a" and step < 4:
                alone.append(s.num_tokens)
            elif s.request.request_id == "a":
                assert s.num_tokens == 1, "a decode never waits"
            elif s.request.num_computed_tokens < 100:
                beside.append(s.num_tokens)
        scheduler.update(output, {s.request.request_id: [7] for s in output.scheduled if s.draws})
        if sum(beside) == 100:
            break
    return alone, beside


def test_beside_decodes_prompts_take_few_tokens() -> None:
    assert chunks(8) == ([32, 32, 32, 4], [8] * 12 + [4])


def test_without_a_limit_they_take_what_decodes_leave() -> None:
    assert chunks(None) == ([32, 32, 32, 4], [31, 31, 31, 7])
