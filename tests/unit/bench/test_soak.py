"""benchmarks/serving/soak.py: the JSON line has the schema, and growth is what memory gained after the warm-up."""

import importlib
import random
import tomllib
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "serving"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["soak"]


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("soak")


def test_the_json_line(soak: ModuleType) -> None:
    run = soak.Soak(soak.MixedLoad(1, "m", random.Random(0)))
    sizes = [50, 100, 100, 104, 110, 110, 110, 110, 110, 110, 110, 110, 110, 121]  # minute by minute
    run.samples = [soak.Sample(minute, size, 2 * size, 0.01) for minute, size in enumerate(sizes)]
    result = soak.summary(run, "m.gguf", 13, 3, 64)
    assert set(result) == set(SCHEMA)
    assert result["server_resident_growth"] == pytest.approx(115.5 / 107 - 1)  # minutes 12, 13 and 3, 4
    assert (result["server_resident_bytes"], result["engine_resident_bytes"]) == (121, 242)
