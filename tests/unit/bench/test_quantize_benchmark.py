"""benchmarks/start/quantize.py: the JSON line has the schema, and its folder is a model."""

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

from hotloop.models.registry import load_model_spec
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.open_model import open_model

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "start" / "quantize.py"
SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["quantize"]


@pytest.fixture
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("quantize_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quantize_benchmark"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["quantize_benchmark"]


def test_the_json_line(script: ModuleType) -> None:
    runs = [script.Run(2.0, 130, 3.0, 150), script.Run(1.0, 120, 5.0, 140), script.Run(4.0, 125, 4.0, 160)]
    shape = script.SHAPES["tiny"]
    result = script.summary("q4_0", shape, 1000, 500, 1e9, runs)
    assert set(result) == set(SCHEMA)
    assert (result["quantize_s_median"], result["quantize_s_max"]) == (2.0, 4.0)
    assert (result["first_token_s_median"], result["first_token_s_max"]) == (4.0, 5.0)
    assert (result["quantize_peak_resident_bytes"], result["run_peak_resident_bytes"]) == (130, 160)
    assert result["layer_bytes"] == 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)
    assert result["peak_limit_bytes"] == 650 + result["layer_bytes"]


def test_the_folder_is_a_model(script: ModuleType, tmp_path: Path) -> None:
    script.write_folder(tmp_path / "model", script.SHAPES["tiny"])
    with open_model(tmp_path / "model") as model:
        assert load_model_spec(model).config.num_layers == 2
        tokenizer = Tokenizer.from_metadata(model.metadata)
        assert tokenizer.decode(tokenizer.encode("Hi there")) == "Hi there"
