"""Float64 logits of a model's test sequence, and what int8 activations alone cost on it.

Needs logits_ids.npy of llama_cpp_oracle.py in RESULTS/<model file stem>/; writes beside it logits_float64.npy
and float64.json: how far from it llama.cpp and the numpy models of the engine's roundings are.

    python tools/oracles/float64_oracle.py RESULTS MODEL.gguf
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from float64_forward import Rounding, forward
from metrics import agreement

ROUNDINGS = {
    "numpy_int8_activations": Rounding(activations="int8"),
    "numpy_f16_kv": Rounding(kv="f16"),
    "numpy_int8_activations_f16_kv": Rounding(activations="int8", kv="f16"),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.results / arguments.model.stem
    ids = np.load(folder / "logits_ids.npy").tolist()
    start_s = time.perf_counter()
    reference = forward(arguments.model, ids)
    np.save(folder / "logits_float64.npy", reference)
    print(f"float64 forward: {time.perf_counter() - start_s:.0f} s", flush=True)
    report: dict[str, Any] = {"num_positions": len(ids)}
    if (folder / "logits_llamacpp.npy").exists():
        theirs = np.load(folder / "logits_llamacpp.npy", mmap_mode="r")
        report["llama_cpp_f32_kv"] = asdict(agreement(reference, theirs))
        print(json.dumps(report), flush=True)
    for name, rounding in ROUNDINGS.items():
        report[name] = asdict(agreement(reference, forward(arguments.model, ids, rounding)))
        print(name, report[name], flush=True)
    (folder / "float64.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
