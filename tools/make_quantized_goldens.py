"""Make tests/golden/quantized_layers.npz: `python tools/make_quantized_goldens.py`.

One linear layer for each of some layouts, as a library wrote it, with its quantization_config, and every fifth row of what the
library makes of it in float32. Needs what tools/oracles/quantized_folders.py needs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools" / "oracles")]

from quantized_folders import LIBRARIES, write_base  # noqa: E402
from quantizing_libraries import config_of  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "quantized_layers.npz"
LAYER = "model.layers.0.mlp.gate_proj"  # 96 outputs, 64 inputs
ROW_STEP = 5
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq-sym": ("auto-gptq", {"bits": 4, "group_size": 32, "sym": True}),
    "gptq-asym": ("gptqmodel", {"bits": 4, "group_size": 32, "sym": False}),
    "gptq-asym-2bit": ("gptqmodel", {"bits": 2, "group_size": 32, "sym": False}),
    "gptq-asym-v2": ("gptqmodel", {"bits": 4, "group_size": 32, "sym": False, "format": "gptq_v2"}),
    "gptq-8bit": ("auto-gptq", {"bits": 8, "group_size": 32, "sym": True}),
    "awq": ("autoawq", {"group_size": 32}),
    "packed-4bit": ("compressed", {"scheme": "W4A16", "group_size": 32}),
    "packed-8bit": ("compressed", {"scheme": "W8A16", "group_size": None, "strategy": "channel"}),
    "int8": ("compressed", {"scheme": "INT8"}),
    "fp8-rows": ("compressed", {"scheme": "FP8_DYNAMIC"}),
    "fp8-blocks": ("compressed", {"scheme": "FP8_BLOCK", "block_structure": [40, 48]}),
    "fp8-exponents": ("fp8", {"block": (32, 32), "scale_fmt": "ue8m0"}),
}


def main() -> None:
    arrays: dict[str, NDArray[Any]] = {}
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        base = write_base(Path(scratch) / "base", True, 64, 96)
        for name, (library, settings) in CASES.items():
            folder = Path(scratch) / name
            write, weights = LIBRARIES[library]
            write(base, folder, **settings)
            config = config_of(folder)["quantization_config"]
            if "meta" in config:
                config["meta"] = {"quantizer": config["meta"]["quantizer"]}
            cases[name] = {"config": config, "parts": {}}
            for part, (dtype, shape, data) in stored_tensors(folder / "model.safetensors").items():
                cases[name]["parts"][part] = {"dtype": dtype, "shape": shape}
                arrays[f"{name}/{part}"] = data
            arrays[f"{name}/expected"] = weights(folder)[LAYER][0].numpy()[::ROW_STEP]
    np.savez_compressed(GOLDEN, cases=np.array(json.dumps(cases)), **arrays)
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")


def stored_tensors(path: Path) -> dict[str, tuple[str, list[int], NDArray[np.uint8]]]:
    """The layer's tensors: dtype, shape and bytes, by the ends of their names."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name.startswith(f"{LAYER}."):
            begin, end = (start + offset for offset in entry["data_offsets"])
            data = np.frombuffer(content[begin:end], np.uint8)
            tensors[name.removeprefix(f"{LAYER}.")] = (entry["dtype"], entry["shape"], data)
    return tensors


if __name__ == "__main__":
    main()
