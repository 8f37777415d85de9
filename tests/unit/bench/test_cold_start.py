"""benchmarks/start/cold_start.py: the JSON line has the schema, and says the worst of memory."""

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "start" / "cold_start.py"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["cold_start"]


@pytest.fixture
def cold_start() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("cold_start", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cold_start"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cold_start"]


def test_the_json_line(cold_start: ModuleType) -> None:
    runs = [cold_start.Run(1.0, 0.5, 130, 110), cold_start.Run(3.0, 0.7, 120, 105), cold_start.Run(1.5, 0.2, 125, 115)]
    result = cold_start.summary("m.gguf", 100, 1e9, runs)
    assert set(result) == set(SCHEMA)
    assert (result["first_token_s_median"], result["load_s_median"], result["load_s_max"]) == (1.5, 0.5, 0.7)
    assert (result["peak_resident_bytes"], result["peak_resident_per_file_byte"]) == (130, 1.3)
    assert (result["steady_resident_bytes"], result["steady_resident_per_file_byte"]) == (115, 1.15)
