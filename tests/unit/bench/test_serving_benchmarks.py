"""benchmarks/serving/compare.py and overhead.py: their figures and JSON, with servers that take no time."""

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_openai import FakeOpenAI, stream, whole
from hotloop.bench.serving.answers import Answer
from hotloop.bench.serving.connection import Address
from hotloop.bench.serving.target import Target
from hotloop.config import EngineConfig
from hotloop.engine.loading import load_engine
from hotloop.telemetry.prometheus import Metrics
from hotloop.telemetry.timings import PARTS
from tiny_models import write_tiny_model

SERVING = Path(__file__).parents[3] / "benchmarks" / "serving"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())
NAMES = ("compare", "overhead", "servers")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The scripts, imported as modules; they and what they import are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(SERVING), *sys.path])
    before = set(sys.modules)
    yield SimpleNamespace(**{name: __import__(name) for name in NAMES})
    for name in set(sys.modules) - before:
        if not name.startswith(("hotloop", "numpy", "prometheus")):
            del sys.modules[name]


def served(tokens_per_s: float, ttft_s: float) -> dict[str, Any]:
    value = {"p50": ttft_s, "p99": 2 * ttft_s}
    return {
        "tokens_per_s": tokens_per_s,
        "num_failed": 0,
        "ttft_s": value,
        "tpot_s": value,
        "itl_s": value,
        "e2e_s": value,
    }


def test_rounds_are_interleaved_and_ratios_are_of_the_same_round(scripts: SimpleNamespace) -> None:
    compare = scripts.compare
    calls: list[tuple[str, bool]] = []
    results = {"a": iter([served(10.0, 1.0), served(20.0, 1.0), served(60.0, 1.0)]),
               "b": iter([served(5.0, 4.0), served(4.0, 2.0), served(30.0, 4.0)])}  # fmt: skip

    def load(url: str, is_measured: bool) -> dict[str, Any]:
        calls.append((url, is_measured))
        return next(results[url]) if is_measured else {}

    rounds = compare.measure_rounds({"hotloop": "a", "llama-server": "b"}, 3, load)
    assert calls == [("a", False), ("b", False), *[("a", True), ("b", True)] * 3]
    with pytest.raises(scripts.servers.ServerError, match=r"b: .*busy"):
        compare.measure_rounds({"b": "b"}, 1, lambda *_: {**served(1.0, 1.0), "num_failed": 1, "failures": {"busy": 1}})
    figures = compare.summary(rounds)
    assert figures["tokens_per_s"] == {"hotloop": 20.0, "llama-server": 5.0, "ratio": 2.0}
    assert figures["ttft_p50_s"] == {"hotloop": 1.0, "llama-server": 4.0, "ratio": 0.25}
    assert figures["itl_p99_s"] == {"hotloop": 2.0, "llama-server": 8.0, "ratio": 0.25}


def test_the_json_line_of_compare(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = scripts.compare
    (tmp_path / "m.gguf").touch()
    options: list[Any] = []
    stub = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(compare, "build", lambda *_: tmp_path)
    monkeypatch.setattr(compare, "LlamaCpp", lambda *_: SimpleNamespace(check=lambda: None, describe=lambda: "built"))
    monkeypatch.setattr(compare, "print_conditions", lambda _: (1e9, 0.0))
    monkeypatch.setattr(compare, "commands", lambda *_: {name: stub for name in (compare.OURS, compare.THEIRS)})
    monkeypatch.setattr(compare, "running", lambda _: __import__("contextlib").nullcontext(SimpleNamespace(url="http://there")))
    monkeypatch.setattr(compare, "bench_serve_blocking", lambda o, _: (options.append(o), served(1.0, 1.0))[1])
    command = ["compare.py", str(tmp_path / "m.gguf"), "--work", str(tmp_path), "--rounds", "2", "--concurrency", "4"]
    monkeypatch.setattr(sys, "argv", command)
    compare.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == set(SCHEMA["serving_compare"]) - {"figure"}
    assert set(result["figures"]["tokens_per_s"]) == set(SCHEMA["serving_compare"]["figure"])
    assert [(o.concurrency, o.num_requests, o.output_tokens.high) for o in options] == [(4, 4, 8)] * 2 + [
        (4, 32, 128)
    ] * 4


def test_commands_give_both_servers_the_same_slots(scripts: SimpleNamespace) -> None:
    args = SimpleNamespace(
        model=Path("m.gguf"), prompt_tokens=128, output_tokens=128, concurrency=16, threads=2, isa="avx2",
        hotloop_args="--block-size 32", llama_args="-fa on",
    )  # fmt: skip
    ours, theirs = scripts.compare.commands(args, Path("bin")).values()
    assert ours.arguments[3:] == ("serve", "m.gguf", "--threads", "2", "--max-num-seqs", "16", "--block-size", "32")
    assert ours.isa == "avx2"
    assert theirs.arguments[3:] == ("-np", "16", "-c", str(16 * 512), "-t", "2", "-tb", "2", "-fa", "on")


def test_servers_are_started_awaited_and_ended(scripts: SimpleNamespace) -> None:
    servers = scripts.servers
    code = (
        "import http.server, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/ready' else 503)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Handler).serve_forever()\n"
    )
    with servers.running(servers.Command((sys.executable, "-c", code), "/ready")) as server:
        assert server.process.poll() is None
    assert server.process.poll() is not None
    assert not servers._wait_until_ready(SimpleNamespace(poll=lambda: -15), server.url)
    failing = servers.Command((sys.executable, "-c", "raise SystemExit('no such model')"), "/ready")
    with pytest.raises(servers.ServerError, match="no such model"), servers.running(failing):
        pass


def test_the_bare_engine_tells_when_each_token_came(scripts: SimpleNamespace, tmp_path: Path) -> None:
    engine = load_engine(write_tiny_model(tmp_path / "tiny.gguf", "llama"), {"threads": 1, "isa": "scalar"})
    events_s = scripts.overhead.bare_events_s(engine, ["one", "two words", "x"], 5)
    assert [len(moments_s) for moments_s in events_s] == [5, 5, 5]
    assert all(moments_s == sorted(moments_s) for moments_s in events_s)


def test_only_steps_in_which_all_decode_count(scripts: SimpleNamespace) -> None:
    early = [0.0, 9.0, 10.0, 11.0, 13.0, 14.0]  # decodes beside the other's prefill until 10
    late = [10.0, 11.0, 14.0, 15.0, 16.0]  # its token of 13 had no text; decodes alone from 14
    figures = scripts.overhead.step_figures([early, late])
    assert set(figures) == set(SCHEMA["serving_overhead"]["steps"])
    assert figures == {"step_s_mean": 4.0 / 3, "step_s_median": 1.0}


def test_errors_of_an_account(scripts: SimpleNamespace) -> None:
    def answer(e2e_s: float, **changes: float) -> Answer:
        parts = dict.fromkeys(PARTS, 0.0) | {"queued_s": 0.4, "own_decode_s": 0.6}
        whole = {"e2e_s": 1.0, "ttft_s": 0.4, "tpot_s": 0.2, "drawn_tokens": 4}
        return Answer(5.0, 5.0 + e2e_s, timings=parts | whole | changes)

    errors = scripts.overhead.account_errors(
        [answer(1.0), answer(1.25, ttft_s=0.5), answer(1.0, queued_s=0.1), answer(0.8)]
    )
    assert set(errors) < set(SCHEMA["serving_overhead"])
    assert errors["identity_error_s_max"] == pytest.approx(0.1)
    assert errors["parts_error_s_max"] == pytest.approx(0.3)
    assert errors["stopwatch_error_p50"] == pytest.approx(0.0)
    assert errors["stopwatch_error_max"] == pytest.approx(-0.25)
    assert errors["stopwatch_within_5_percent"] == 0.5


def test_delivery_is_read_from_the_servers_metrics(scripts: SimpleNamespace) -> None:
    overhead = scripts.overhead
    metrics = Metrics("m", EngineConfig(max_model_len=64), 4, 0.0, num_open=lambda: 0)
    for _ in range(98):
        metrics.delivered(0.0003)
    for seconds in (0.0045, 99.0):
        metrics.delivered(seconds)
    scrape = overhead.Scrape.of(metrics.render().decode())
    assert scrape.cpu_s > 0
    counts = scrape.deliveries
    assert (counts[0.005], counts[float("inf")]) == (99, 100)
    assert overhead.quantile(counts, 0.5) == pytest.approx(0.00025 + 0.00025 * 50 / 98)
    assert overhead.quantile(counts, 0.99) == pytest.approx(0.005)
    assert overhead.quantile(counts, 1.0) == max(bound for bound in counts if bound != float("inf"))


def test_the_scripts_do_not_hide_failed_requests(scripts: SimpleNamespace) -> None:
    bodies = iter([stream, lambda _: [whole({"error": "x"}, "500 Internal Server Error")]])
    with FakeOpenAI(lambda body: next(bodies)(body)).in_thread() as url:
        target = Target(Address.parse(url), "completions", "fake")
        requests = [target.request("a", 1)] * 2
        with pytest.raises(scripts.servers.ServerError, match="1 of 2 requests failed, the first: HTTP 500"):
            scripts.overhead._served(target, requests, 1)
