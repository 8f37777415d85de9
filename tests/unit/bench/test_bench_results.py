"""What `hotloop bench` prints: the schema's keys, and figures that agree with each other. No speed is tested."""

import json
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hotloop.bench import timing
from hotloop.bench.decode import bench_decode
from hotloop.bench.kernels import bench_kernels, matrix_kinds
from hotloop.bench.options import BenchOptions, model_peak_kind
from hotloop.bench.prefill import bench_prefill, pack
from hotloop.bench.timing import Ceiling, Probe, figures, timed_blocks
from hotloop.cli import main as cli
from hotloop.errors import InvalidRequestError
from hotloop.models.registry import load_model_spec
from hotloop.telemetry.traffic import flops_per_step
from hotloop.weights.gguf import GGUFFile
from tiny_models import write_tiny_model

SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["bench"]


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> list[Ceiling]:
    """The probe's samples: 1, 2, 3, ... GB/s and GFLOP/s."""
    sampled: list[Ceiling] = []

    def sample(_: Probe) -> Ceiling:
        sampled.append(Ceiling((len(sampled) + 1) * 1e9, (len(sampled) + 1) * 1e9))
        return sampled[-1]

    monkeypatch.setattr(Probe, "sample", sample)
    monkeypatch.setattr("hotloop.bench.kernels._CYCLED_BYTES", 0)
    return sampled


def keys(bench: str) -> set[str]:
    return {*SCHEMA["all"], *SCHEMA[bench]}


def test_decode(gguf: GGUFFile) -> None:
    lines: list[str] = []
    options = BenchOptions("tiny", (1, 3), context_tokens=20, tokens=4, runs=2, threads=1)
    results = list(bench_decode(gguf, options, lines.append, profile=True))
    assert [r["batch"] for r in results] == [1, 3]
    for r in results:
        assert set(r) == keys("decode")
        assert r["decode_tokens_per_s"] == r["batch"] / r["step_s_median"]
        assert (r["bench"], r["context_tokens"], r["threads"]) == ("decode", 20, 1)
    assert results[1]["weight_bytes_per_step"] == results[0]["weight_bytes_per_step"]
    assert results[1]["kv_bytes_per_step"] == pytest.approx(3 * results[0]["kv_bytes_per_step"], abs=3)
    assert results[1]["flops_per_step"] == pytest.approx(3 * results[0]["flops_per_step"], abs=3)
    assert lines[0].startswith("ceiling 1.0 GB/s, 1 GFLOP/s")
    assert any("attn_output" in line for line in lines)


def test_prefill(gguf: GGUFFile) -> None:
    options = BenchOptions("tiny", (1, 2), context_tokens=10, tokens=30, runs=2, threads=1)
    results = list(bench_prefill(gguf, options, lambda _: None))
    for r in results:
        assert set(r) == keys("prefill")
        assert r["prefill_tokens_per_s"] == r["batch"] * 30 / r["prefill_s_median"]
    assert results[1]["flops_per_prefill"] == 2 * results[0]["flops_per_prefill"]


def test_kernels(gguf: GGUFFile) -> None:
    results = list(bench_kernels(gguf, BenchOptions("tiny", (1, 5), tokens=2, runs=2, threads=1), lambda _: None))
    for r in results:
        assert set(r) == keys("kernels")
        assert r["matrix_flops"] == 2 * r["rows"] * r["cols"] * r["batch"]
    assert len(results) == 2 * len(matrix_kinds(gguf))


def test_every_matrix_of_a_step_has_a_kind(gguf: GGUFFile) -> None:
    model = load_model_spec(gguf)
    names = [name for kind in matrix_kinds(gguf) for name in kind.names]
    expected = {name for name, shape in model.tensor_shapes.items() if len(shape) == 2}
    if not model.config.tied_embeddings:
        expected.remove("token_embd.weight")
    assert len(names) == len(set(names))
    assert set(names) == expected


def test_json_goes_to_stdout_and_text_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    command = ["hotloop", "bench", "decode", str(path), "--batch", "1,2", "--tokens", "2", "--context", "5", "--json"]
    monkeypatch.setattr(sys, "argv", [*command, "--threads", "1", "--isa", "scalar"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 0
    out, err = capsys.readouterr()
    results: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert [(r["batch"], r["isa"], r["model"]) for r in results] == [(1, "scalar", str(path)), (2, "scalar", str(path))]
    assert err.startswith("ceiling")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": (0,)}, "--batch"), ({"batches": ()}, "--batch"), ({"context_tokens": -1}, "--context is -1"),
        ({"tokens": 0}, "--tokens is 0"), ({"runs": 0}, "--runs is 0"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        BenchOptions("tiny", **options)


def test_a_batch_larger_than_a_step_is_refused(gguf: GGUFFile) -> None:
    with pytest.raises(InvalidRequestError, match="513"):
        next(bench_decode(gguf, BenchOptions("tiny", (513,)), lambda _: None))


def test_blocks_are_held_against_their_own_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.0, 3.0, 10.0, 14.0])  # runs of 1, 2 and 4 seconds
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    calls: list[int] = []
    blocks = timed_blocks(calls.append, 3, 2, Probe(1, "", "int8"))
    assert calls == [0, 0, 1, 2, 2], "each block's first run warms up"
    assert [b.runs_s for b in blocks] == [(1.0, 2.0), (4.0,)]
    assert [b.ceiling.read_bytes_per_s for b in blocks] == [1.5e9, 2.5e9]
    f = figures(blocks, read_bytes=3e9, flops=6e9)
    assert f.median_s == 2.0
    assert f.spread_s == pytest.approx(3.6 - 1.2)
    assert f.mbu == pytest.approx((3 / 1.5 / 1.5 + 3 / 4 / 2.5) / 2)
    assert f.mfu == pytest.approx(2 * f.mbu)


def test_prompts_are_packed_into_full_steps() -> None:
    steps = pack(3, 10, 30, 32)
    assert [sum(s.end - s.begin for s in step) for step in steps] == [32, 28]
    assert [(s.request, s.begin, s.end, s.wants_logits) for step in steps for s in step] == [
        (0, 10, 30, True), (1, 10, 22, False), (1, 22, 30, True), (2, 10, 30, True)
    ]  # fmt: skip


def test_flops_count_what_a_token_sees(gguf: GGUFFile) -> None:
    model = load_model_spec(gguf)
    config = model.config
    one = flops_per_step(model, [0], 1)
    assert one - flops_per_step(model, [0], 0) == 2 * config.vocab_size * config.hidden_size
    assert flops_per_step(model, [0, 0], 2) == 2 * one
    grown = flops_per_step(model, [99], 1) - one
    windows = [layer.window or 100 for layer in config.layers]
    assert grown == 4 * config.num_heads * config.head_dim * sum(min(99, w - 1) for w in windows)


def test_peak_kind_follows_the_weights(tmp_path: Path) -> None:
    for formats, kind in (("BF16", "f32"), ("Q8_0", "int8")):
        with GGUFFile.open(write_tiny_model(tmp_path / f"{kind}.gguf", "llama", formats=formats)) as gguf:
            assert model_peak_kind(gguf) == kind
