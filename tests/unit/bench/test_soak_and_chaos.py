"""benchmarks/serving/soak.py and chaos.py: their JSON lines have the schema; growth is what memory gained after the warm-up."""

import importlib
import random
import signal
import tomllib
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "serving"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("soak")


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("chaos")


def test_the_json_line_of_soak(soak: ModuleType) -> None:
    run = soak.Soak(soak.MixedLoad(1, "m", random.Random(0)))
    sizes = [50, 100, 100, 104, 110, 110, 110, 110, 110, 110, 110, 110, 110, 121]  # minute by minute
    run.samples = [soak.Sample(minute, size, 2 * size, 0.01) for minute, size in enumerate(sizes)]
    result = soak.summary(run, "m.gguf", 13, 3, 64)
    assert set(result) == set(SCHEMA["soak"])
    assert result["server_resident_growth"] == pytest.approx(115.5 / 107 - 1)  # minutes 12, 13 and 3, 4
    assert (result["server_resident_bytes"], result["engine_resident_bytes"]) == (121, 242)


def test_the_json_line_of_chaos(chaos: ModuleType) -> None:
    run = chaos.Chaos(1, 2, 16, 200, random.Random(0))
    for number, gap_s in ((signal.SIGKILL, 1.0), (signal.SIGSTOP, 9.0), (signal.SIGKILL, 2.0), (signal.SIGKILL, 4.0)):
        run.disturbances.append(chaos.Disturbance(number, 0.0, gap_s))
    result = chaos.summary(run, "m.gguf")
    assert set(result) == set(SCHEMA["chaos"])
    assert (result["kills"], result["kill_gap_s_median"], result["kill_gap_s_max"]) == (3, 2.0, 4.0)
    assert (result["stalls"], result["stall_gap_s_max"]) == (1, 9.0)
