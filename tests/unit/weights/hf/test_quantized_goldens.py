"""Layers as the quantizing libraries wrote them (tools/make_quantized_goldens.py) are what these libraries make of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.quant.formats import dequantize
from hotloop.weights.open_model import open_model
from tiny_folders import write_tiny_folder

GOLDEN = Path(__file__).parents[3] / "golden" / "quantized_layers.npz"
LAYER = "model.layers.0.mlp.gate_proj"
ROW_STEP = 5
FORMATS = {
    "gptq-sym": "Q4_0", "gptq-asym": "Q5_0", "gptq-asym-2bit": "Q4_0", "gptq-asym-v2": "Q5_0", "gptq-8bit": "Q8_0",
    "awq": "Q5_0", "packed-4bit": "Q4_0", "packed-8bit": "Q8_0", "int8": "Q8_0", "fp8-rows": "F32", "fp8-blocks": "F32",
    "fp8-exponents": "BF16",
}  # fmt: skip


@pytest.fixture(scope="module")
def goldens() -> Mapping[str, NDArray[Any]]:
    with np.load(GOLDEN) as file:
        return dict(file)


def test_every_case_is_there(goldens: Mapping[str, NDArray[Any]]) -> None:
    assert set(json.loads(str(goldens["cases"]))) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_golden_layer(tmp_path: Path, goldens: Mapping[str, NDArray[Any]], name: str) -> None:
    case = json.loads(str(goldens["cases"]))[name]
    parts = {
        f"{LAYER}.{part}": (entry["dtype"], tuple(entry["shape"]), goldens[f"{name}/{part}"].tobytes())
        for part, entry in case["parts"].items()
        if part != "bias"
    }
    tensors = {f"{LAYER}.weight": None, **parts}
    path = write_tiny_folder(tmp_path / "f", tensors=tensors, config={"quantization_config": case["config"]})
    with open_model(path) as folder:
        info = folder.tensors["blk.0.ffn_gate.weight"]
        assert info.format == FORMATS[name]
        weights = dequantize(info.format, folder.read(info.name), info.shape)
    assert (weights[::ROW_STEP] == goldens[f"{name}/expected"]).all()
