"""Metrics over an engine whose requests are preempted, aborted, forked and lost: counters never fall, gauges return to 0, and
sums equal those of the requests' own timelines."""

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes import ONE_GROUP, VOCAB_SIZE, FakeRunner, make_request
from hotloop.config import EngineConfig
from hotloop.engine.client import EngineInfo, InProcessClient
from hotloop.engine.core import EngineCore
from hotloop.kv_cache.layout import KVLayout
from hotloop.request import CompletionOutput, Request, RequestId, RequestOutput, TokenDelta
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.prometheus import Metrics
from hotloop.telemetry.read_rate import ReadRate
from hotloop.telemetry.timings import timings

ROOT = Path(__file__).parents[3]
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_queued", "kv_cache_usage_perc")
MOMENTARY = (*GAUGES, "mbu", "process_cpu", "process_resident", "process_virtual", "process_open", "process_max")


def read(metrics: Metrics) -> dict[str, float]:
    """A scrape as Prometheus parses it: name{own labels} -> value."""
    families = text_string_to_metric_families(metrics.render().decode())
    constant = ("model_name", "engine")
    return {
        f"{s.name}{ {k: v for k, v in s.labels.items() if k not in constant} or '' }": s.value
        for family in families
        for s in family.samples
    }


class Engine:
    """An engine over a fake model, observed; ``queued`` requests wait before it."""

    def __init__(self, num_blocks: int = 200) -> None:
        config = EngineConfig(max_model_len=1000, max_num_batched_tokens=16, block_size=4)
        runner = FakeRunner(KVLayout(ONE_GROUP, 4, "f16"), num_blocks, max_num_seqs=8, max_tokens=16)
        runner.weight_bytes_per_step = 1_000_000
        self.core = EngineCore(runner, config)
        info = EngineInfo(config, num_blocks, 1, runner.max_model_len, VOCAB_SIZE, 1_000_000)
        self.client = InProcessClient(self.core, info)
        self.open: set[RequestId] = set()
        self.queued = 0
        self.deltas: list[TokenDelta] = []
        self.metrics = Metrics(
            "tiny", config, num_blocks, 2e9, num_open=lambda: len(self.open), num_queued=lambda: self.queued,
            engine_pid=os.getpid,
        )  # fmt: skip
        self.client.observer = self.metrics

    def add(self, *requests: Request) -> None:
        self.open |= {request.request_id for request in requests}
        self.metrics.request_started(requests)
        self.client.add(requests)

    def abort(self, *names: str) -> None:
        self.open -= set(names)
        self.client.abort([RequestId(name) for name in names])
        self.metrics.request_finished(None, "abort")

    def poll(self) -> None:
        new = self.client.poll()
        self.deltas += new
        self.open -= {delta.request_id for delta in new if delta.finish_reason}

    def run(self, then: Callable[[], None] = lambda: None) -> None:
        while self.open:
            self.poll()
            then()


def request(name: str, num_prompt: int = 20, max_tokens: int = 6, **fields: object) -> Request:
    prompt = [(7 * len(name) + ord(name[0]) + i) % VOCAB_SIZE for i in range(num_prompt)]
    return make_request(name, prompt, max_tokens, params=PARAMS, arrival_s=time.perf_counter(), **fields)


def finish(engine: Engine, requests: Sequence[Request]) -> list[dict[str, float | int]]:
    """Report the answers of requests that ran to their end; returns their timings."""
    all_timings = []
    for request in requests:
        timeline = [d.timeline for d in engine.deltas if d.request_id == request.request_id][-1]
        assert timeline is not None
        n = len(request.output_token_ids)
        all_timings.append(timings(timeline, n, 1_000_000, 2e9))
        output = RequestOutput(
            request.request_id, None, request.prompt_token_ids,
            [CompletionOutput(0, "", request.output_token_ids, None, "length")], True, 0, all_timings[-1],
            timeline.num_prefix_hit_tokens,
        )  # fmt: skip
        engine.metrics.request_finished(output)
    return all_timings


def test_counters_never_fall_and_gauges_return_to_zero() -> None:  # known fault B81
    """Preemption, chunks, forks, an abort of a running and of a waiting request, a scrape after every step."""
    engine = Engine(num_blocks=24)
    seen = [read(engine.metrics)]

    def scrape() -> None:
        seen.append(read(engine.metrics))
        for name, value in seen[-2].items():
            if not any(word in name for word in MOMENTARY):
                assert seen[-1][name] >= value, name
        assert 0 <= seen[-1]["hotloop:kv_cache_usage_perc"] <= 1
        running, waiting = seen[-1]["hotloop:num_requests_running"], seen[-1]["hotloop:num_requests_waiting"]
        assert running + waiting == len(engine.open) + engine.queued

    requests = [request(c * 3, num_prompt=10 + 3 * i, max_tokens=30) for i, c in enumerate("abcdef")]
    for r in requests:
        engine.add(r)
    parent = request("parent", max_tokens=5)
    child = request("parent", max_tokens=5, choice=1, parent_id=parent.request_id)
    child.request_id = RequestId("child")
    engine.add(parent, child)
    for _ in range(12):
        engine.poll()
        scrape()
    engine.abort("aaa")
    engine.abort("fff")
    scrape()
    engine.run(scrape)
    end = seen[-1]
    drawn = sum(len(d.token_ids) for d in engine.deltas)
    assert end["hotloop:num_preemptions_total"] > 0
    assert end["hotloop:generation_tokens_total"] == drawn
    assert end["hotloop:prompt_tokens_total"] == sum(10 + 3 * i for i in range(6)) + 20
    assert end["hotloop:request_success_total{'finished_reason': 'abort'}"] == 2
    assert end["hotloop:read_bytes_total{'kind': 'weights'}"] == 1e6 * engine.core.steps.num_steps
    assert end["hotloop:step_duration_seconds_count"] == engine.core.steps.num_steps
    assert end["hotloop:prefill_tokens_computed_total"] > end["hotloop:prompt_tokens_total"]  # preempted ones again
    assert max(s["hotloop:num_requests_running"] for s in seen) > 2
    assert max(s["hotloop:kv_cache_usage_perc"] for s in seen) > 0.9
    assert [end[f"hotloop:{gauge}"] for gauge in GAUGES] == [0, 0, 0, 0]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_gauges_return_to_zero_when_the_last_request_is_aborted_between_steps(steps: int) -> None:
    engine = Engine()
    engine.add(request("a", max_tokens=50))
    for _ in range(steps):
        engine.poll()
    assert sum(read(engine.metrics)[f"hotloop:{gauge}"] for gauge in GAUGES) > 0
    engine.abort("a")
    after = read(engine.metrics)
    assert [after[f"hotloop:{gauge}"] for gauge in GAUGES] == [0, 0, 0, 0]


def test_what_a_dead_engine_had_waits_until_the_next_one_runs_it() -> None:
    engine = Engine()
    engine.add(request("a", max_tokens=50))
    engine.queued = 3
    engine.poll()
    before = read(engine.metrics)
    engine.metrics.on_restart("died")
    after = read(engine.metrics)
    assert [before[f"hotloop:{gauge}"] for gauge in GAUGES[:3]] == [1, 3, 3]
    assert [after[f"hotloop:{gauge}"] for gauge in GAUGES] == [0, 4, 3, 0]
    assert after["hotloop:engine_restarts_total{'reason': 'died'}"] == 1
    assert after["hotloop:prefill_tokens_computed_total"] == before["hotloop:prefill_tokens_computed_total"] > 0


def test_latencies_are_those_of_the_timelines() -> None:  # known fault B107
    """TTFT from arrival, a gap for every token after the first, one TPOT per request and none for one token."""
    engine = Engine()
    requests = [request(c, num_prompt=8 + i, max_tokens=1 + i) for i, c in enumerate("abcdefghijkl")]  # 8 run at once
    for r in requests:
        r.arrival_s -= 5  # they waited in the server
        engine.add(r)
    engine.run()
    timings = finish(engine, requests)
    got = read(engine.metrics)

    def total(key: str) -> float:
        return sum(t[key] for t in timings)

    for name, count, seconds in (
        ("time_to_first_token_seconds", 12, total("ttft_s")),
        ("inter_token_latency_seconds", sum(range(12)), total("decode_s")),
        ("request_time_per_output_token_seconds", 11, total("tpot_s")),
        ("e2e_request_latency_seconds", 12, total("e2e_s")),
        ("request_queue_time_seconds", 12, total("queued_s")),
        ("request_prefill_time_seconds", 12, total("ttft_s") - total("queued_s")),
        ("request_decode_time_seconds", 12, total("decode_s")),
        ("request_inference_time_seconds", 12, total("e2e_s") - total("queued_s")),
        ("request_prompt_tokens", 12, sum(8 + i for i in range(12))),
        ("request_generation_tokens", 12, sum(1 + i for i in range(12))),
    ):
        assert got[f"hotloop:{name}_count"] == count, name
        assert got[f"hotloop:{name}_sum"] == pytest.approx(seconds), name
    assert got["hotloop:time_to_first_token_seconds_sum"] > 12 * 5
    parts = sum(value for name, value in got.items() if name.startswith("hotloop:request_seconds_total"))
    assert parts == pytest.approx(total("e2e_s"))
    assert got["hotloop:request_success_total{'finished_reason': 'length'}"] == 12


def test_prefix_hits_are_counted_once() -> None:
    engine = Engine()
    for name in ("a", "a2"):
        shared = make_request(name, list(range(40)), 2, params=PARAMS, arrival_s=time.perf_counter())
        engine.add(shared)
        engine.run()
    finish(engine, [shared])
    got = read(engine.metrics)
    hits = shared.num_prefix_hit_tokens
    assert (got["hotloop:prefix_cache_queries_total"], got["hotloop:prefix_cache_hits_total"]) == (80, hits)
    assert got["hotloop:request_prefill_kv_computed_tokens_sum"] == 40 - hits < 10


def test_the_read_rate_is_that_of_the_last_whole_seconds() -> None:
    rate = ReadRate()
    for i in range(200):  # 20 steps a second, 5 bytes each
        rate.add(100 + i / 20, 5)
    assert rate.bytes_per_s(110.2) == 100
    assert rate.bytes_per_s(115.0) == 50
    assert rate.bytes_per_s(121.0) == 0


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bhotloop:\w+|\bprocess_\w+", text))


def test_the_dashboard_and_the_page_name_what_there_is() -> None:
    metrics = Engine().metrics
    metrics.responded(200)
    metrics.on_restart("died")
    families = list(text_string_to_metric_families(metrics.render().decode()))
    dashboard = json.loads((ROOT / "docs/grafana/hotloop.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 40
    assert names_in(" ".join(expressions)) <= {sample.name for family in families for sample in family.samples}
    there = {f.name + "_total" * (f.type == "counter") for f in families if "process_" not in f.name}
    page = (ROOT / "docs/metrics.md").read_text()
    assert {name for name in names_in(page) if "process_" not in name} == there
