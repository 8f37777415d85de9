"""Metrics: what a server tells Prometheus. vLLM's names and meanings under ``hotloop:``, and what hotloop alone knows.

docs/metrics.md lists them. Steps are reported by the thread that polls the engine, requests by the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotloop.config import EngineConfig
from hotloop.request import Request, RequestOutput, RestartReason, TokenDelta
from hotloop.telemetry.read_rate import ReadRate
from hotloop.telemetry.series import Counter, Histogram, one_two_five
from hotloop.telemetry.steps import StepRecord, StepReport
from hotloop.telemetry.timings import PARTS

EndReason = Literal["stop", "length", "abort", "deadline", "error"]
RejectReason = Literal["invalid", "overloaded", "deadline", "left", "shutdown"]

_STEP_PARTS = ("schedule", "build", "forward", "sample", "emit")
_REQUEST_PARTS = tuple(part.removesuffix("_s") for part in PARTS)

# vLLM's bounds, so that its dashboards and alerts find theirs, and finer ones below.
_FINE = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075)
_TTFT_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_S = (
    *_FINE, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_S = (*_FINE, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
_DELIVERY_S = (0.0001, 0.00025, *_FINE, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEP_TOKENS = tuple(float(n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))


class Metrics(Collector):
    """Implements engine.client.EngineObserver.

    num_open: requests that the engine has or should have. num_queued: those that wait in the server before it. engine_pid:
    of the engine process, None while there is none.
    """

    def __init__(
        self,
        model_name: str,
        config: EngineConfig,
        num_blocks: int,
        read_ceiling_bytes_per_s: float,
        *,
        num_open: Callable[[], int],
        num_queued: Callable[[], int] = lambda: 0,
        engine_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        assert config.max_model_len is not None
        self._labels = {"model_name": model_name, "engine": "0"}
        self._config = config
        self._num_blocks = num_blocks
        self._ceiling = read_ceiling_bytes_per_s
        self._num_open = num_open
        self._num_queued = num_queued
        self._report: StepReport | None = None  # the latest
        self._reads = ReadRate()
        self._make_step_series()
        self._make_request_series(one_two_five(config.max_model_len))
        self._series = [value for value in vars(self).values() if isinstance(value, Counter | Histogram)]
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        ProcessCollector("hotloop:engine", lambda: engine_pid() or "none", registry=self._registry)

    def _make_step_series(self) -> None:
        self._step_tokens = Histogram("hotloop:iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS)
        self._step_time = Histogram("hotloop:step_duration_seconds", "Seconds per step.", _STEP_S)
        self._step_parts = Counter(
            "hotloop:step_seconds", "Seconds of all steps by what they did.", "part", _STEP_PARTS
        )
        self._prefill_tokens = Counter(
            "hotloop:prefill_tokens_computed",
            "Prompt tokens computed; those of preempted and recovered requests again.",
        )
        self._generation_tokens = Counter("hotloop:generation_tokens", "Tokens drawn.")
        self._drafts = Counter("hotloop:spec_decode_num_draft_tokens", "Drafts that steps verified.")
        self._accepted = Counter("hotloop:spec_decode_num_accepted_tokens", "Drafts that were drawn.")
        self._preemptions = Counter("hotloop:num_preemptions", "Requests that lost their KV blocks to others.")
        self._prefix_queries = Counter("hotloop:prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._prefix_hits = Counter("hotloop:prefix_cache_hits", "Tokens found in the prefix cache.")
        self._read_bytes = Counter(
            "hotloop:read_bytes", "Bytes that the steps read from memory.", "kind", ("weights", "kv_cache")
        )
        self._ttft = Histogram(
            "hotloop:time_to_first_token_seconds", "Seconds from a request's arrival to its first token.", _TTFT_S
        )
        self._itl = Histogram(
            "hotloop:inter_token_latency_seconds", "Seconds between two emissions of a request's tokens.", _TOKEN_S
        )
        self._restarts = Counter(
            "hotloop:engine_restarts", "Engine processes that were replaced.", "reason", get_args(RestartReason)
        )

    def _make_request_series(self, token_bounds: Sequence[float]) -> None:
        self._ends = Counter("hotloop:request_success", "Requests that ended.", "finished_reason", get_args(EndReason))
        self._rejections = Counter(
            "hotloop:requests_rejected", "Requests that never ran.", "reason", get_args(RejectReason)
        )
        self._responses = Counter("hotloop:http_responses", "HTTP responses to all requests.", "status")
        self._prompt_tokens = Counter("hotloop:prompt_tokens", "Prompt tokens of requests given to the engine.")
        self._prompt_sizes = Histogram("hotloop:request_prompt_tokens", "Prompt tokens per request.", token_bounds)
        self._output_sizes = Histogram(
            "hotloop:request_generation_tokens", "Tokens generated per request, all choices.", token_bounds
        )
        self._longest_choices = Histogram(
            "hotloop:request_max_num_generation_tokens", "Tokens of a request's longest choice.", token_bounds
        )
        self._computed_prompts = Histogram(
            "hotloop:request_prefill_kv_computed_tokens",
            "Prompt tokens that the prefix cache did not have.",
            token_bounds,
        )
        self._params_n = Histogram("hotloop:request_params_n", "Choices asked for.", (1.0, 2.0, 5.0, 10.0, 20.0))
        self._params_max_tokens = Histogram(
            "hotloop:request_params_max_tokens", "Most tokens a request may generate.", token_bounds
        )
        self._tpot = Histogram(
            "hotloop:request_time_per_output_token_seconds",
            "Seconds from first to last token per token after the first; requests of one token do not count.",
            _TOKEN_S,
        )
        self._e2e = Histogram("hotloop:e2e_request_latency_seconds", "Seconds from arrival to last token.", _REQUEST_S)
        self._queue_time = Histogram(
            "hotloop:request_queue_time_seconds", "Seconds from arrival to first step.", _REQUEST_S
        )
        self._prefill_time = Histogram(
            "hotloop:request_prefill_time_seconds", "Seconds from first step to first token.", _REQUEST_S
        )
        self._decode_time = Histogram(
            "hotloop:request_decode_time_seconds", "Seconds from first to last token.", _REQUEST_S
        )
        self._inference_time = Histogram(
            "hotloop:request_inference_time_seconds", "Seconds from first step to last token.", _REQUEST_S
        )
        self._request_parts = Counter(
            "hotloop:request_seconds", "Seconds of finished requests by what they went into.", "part", _REQUEST_PARTS
        )
        self._delivery = Histogram(
            "hotloop:token_delivery_seconds", "Seconds from a token's step to its bytes being written.", _DELIVERY_S
        )

    # ---- the engine: EngineObserver ---------------------------------------------------------------------------------

    def on_step(self, report: StepReport, deltas: Sequence[TokenDelta]) -> None:
        self._report = report
        if self._config.enable_prefix_caching:
            self._prefix_queries.add(report.prefix_query_tokens)
            self._prefix_hits.add(report.prefix_hit_tokens)
        if report.record is not None:
            self._add_step(report.record)
        self._add_tokens(deltas)

    def on_restart(self, reason: RestartReason) -> None:
        self._restarts.add(1, reason)
        self._report = None

    def _add_step(self, record: StepRecord) -> None:
        parts_s = (record.schedule_s, record.build_s, record.forward_s, record.sample_s, record.emit_s)
        for part, seconds in zip(_STEP_PARTS, parts_s, strict=True):
            self._step_parts.add(seconds, part)
        step_s = sum(parts_s)
        self._step_time.observe(step_s)
        self._step_tokens.observe(record.num_prefill_tokens + record.num_decode_tokens + record.num_draft_tokens)
        self._drafts.add(record.num_draft_tokens)
        self._accepted.add(record.num_accepted_tokens)
        self._prefill_tokens.add(record.num_prefill_tokens)
        self._generation_tokens.add(record.num_drawn_tokens)
        self._preemptions.add(record.num_preempted)
        self._read_bytes.add(record.weight_bytes, "weights")
        self._read_bytes.add(record.kv_bytes, "kv_cache")
        self._reads.add(record.start_s + step_s, record.weight_bytes + record.kv_bytes)

    def _add_tokens(self, deltas: Sequence[TokenDelta]) -> None:
        gaps: dict[float, int] = {}  # requests that decode together have the same
        for delta in deltas:
            timeline = delta.timeline
            if timeline is None or not delta.token_ids:
                continue
            if timeline.previous_token_s:
                gap_s = timeline.last_token_s - timeline.previous_token_s
                gaps[gap_s] = gaps.get(gap_s, 0) + 1
            else:
                self._ttft.observe(timeline.first_token_s - timeline.arrival_s)
        for gap_s, count in gaps.items():
            self._itl.observe(gap_s, count)

    # ---- the server -------------------------------------------------------------------------------------------------

    def request_started(self, requests: Sequence[Request]) -> None:
        """The choices of one prompt were given to the engine."""
        first = requests[0]
        self._prompt_tokens.add(len(first.prompt_token_ids))
        self._params_n.observe(len(requests))
        self._params_max_tokens.observe(first.max_tokens)

    def request_finished(self, output: RequestOutput | None, reason: EndReason | None = None) -> None:
        """A prompt's answer is there, or its request ended without one for ``reason``. Latencies are those of choice 0."""
        if output is None:
            assert reason is not None
            self._ends.add(1, reason)
            return
        self._ends.add(1, reason or output.outputs[0].finish_reason or "abort")
        sizes = [len(choice.token_ids) for choice in output.outputs]
        self._prompt_sizes.observe(len(output.prompt_token_ids))
        self._computed_prompts.observe(len(output.prompt_token_ids) - output.num_cached_tokens)
        self._output_sizes.observe(sum(sizes))
        self._longest_choices.observe(max(sizes))
        timings = output.timings
        if timings is None:
            return
        e2e_s, ttft_s, queued_s = timings["e2e_s"], timings["ttft_s"], timings["queued_s"]
        self._e2e.observe(e2e_s)
        self._queue_time.observe(queued_s)
        self._prefill_time.observe(ttft_s - queued_s)
        self._decode_time.observe(timings["decode_s"])
        self._inference_time.observe(e2e_s - queued_s)
        if timings["drawn_tokens"] > 1:
            self._tpot.observe(timings["tpot_s"])
        for name, part in zip(PARTS, _REQUEST_PARTS, strict=True):
            self._request_parts.add(timings[name], part)

    def rejected(self, reason: RejectReason) -> None:
        """A request ended before it ran."""
        self._rejections.add(1, reason)

    def responded(self, status: int) -> None:
        """An HTTP request was answered, or given up by its client (499)."""
        self._responses.add(1, str(status))

    def delivered(self, seconds: float) -> None:
        """Tokens were written to a connection so long after the step that drew the last of them."""
        self._delivery.observe(seconds)

    # ---- Prometheus -------------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The exposition: text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's side of it."""
        yield from self._gauges()
        for series in self._series:
            yield series.family(self._labels)

    def _gauges(self) -> Iterator[Metric]:
        report, num_queued = self._report, self._num_queued()
        running = 0 if report is None else report.num_running
        waiting = max(0, self._num_open() - running)
        used = 0 if report is None else report.num_blocks - report.num_free_blocks
        read_bytes_per_s = self._reads.bytes_per_s(time.perf_counter())
        for name, help, value in (
            ("num_requests_running", "Requests that take part in steps.", running),
            ("num_requests_waiting", "Requests that wait, in the server or the engine.", waiting + num_queued),
            ("num_requests_queued", "Of those that wait: in the server, for admission.", num_queued),
            ("kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1.", used / self._num_blocks),
            ("read_bandwidth_ceiling_bytes_per_second", "Read bandwidth of this machine.", self._ceiling),
            (
                "mbu", "Share of the read bandwidth that the steps of the last 10 seconds used, 0 to 1.",
                read_bytes_per_s / self._ceiling if self._ceiling else 0.0,
            ),
        ):  # fmt: skip
            gauge = GaugeMetricFamily(f"hotloop:{name}", help, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        c = self._config
        info = self._labels | {
            "block_size": str(c.block_size), "num_gpu_blocks": str(self._num_blocks), "cache_dtype": c.kv_dtype,
            "enable_prefix_caching": str(c.enable_prefix_caching),
        }  # fmt: skip
        gauge = GaugeMetricFamily("hotloop:cache_config_info", "The KV cache, in labels.", labels=list(info))
        gauge.add_metric(list(info.values()), 1)
        yield gauge
