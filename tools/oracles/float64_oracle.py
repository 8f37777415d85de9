"""Float64 logits of a model's test sequences, and what int8 activations alone cost on them.

Needs logits_ids.json of llama_cpp_oracle.py in RESULTS/<model file stem>/. Writes logits_float64.npy (float32
[positions, vocab_size], sequences one after another) and float64.json: how far from it the numpy models of the
engine's roundings are, and llama.cpp, if logits_llamacpp.npy is there.

    python tools/oracles/float64_oracle.py RESULTS MODEL.gguf
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from float64_forward import Float64Model, Rounding
from gguf_model import F32, GgufModel
from metrics import agreement

ROUNDINGS = {
    "numpy_int8": Rounding(activations="int8"),
    "numpy_int8_f16_kv": Rounding(activations="int8", kv="f16"),
}


def write_logits(file: Path, model: Path, rounding: Rounding, sequences: list[list[int]]) -> F32:
    """Logits of all positions of all sequences, in a file and mapped: they may be larger than memory."""
    forward = Float64Model(GgufModel(model), rounding)
    hidden = forward.hidden_states(sequences)
    shape = (len(hidden), forward.model.num_rows("token_embd.weight"))
    out: F32 = np.lib.format.open_memmap(file, "w+", np.float32, shape)
    return forward.logits(hidden, out)


def write_float64(model: Path, folder: Path, num_sequences: int | None = None) -> None:
    """Write logits_float64.npy and float64.json for the first sequences, or all."""
    sequences = json.loads((folder / "logits_ids.json").read_text())[:num_sequences]
    theirs = None
    if (folder / "logits_llamacpp.npy").exists():
        theirs = np.load(folder / "logits_llamacpp.npy", mmap_mode="r")
        if len(theirs) < sum(map(len, sequences)):
            raise ValueError(f"{folder}/logits_llamacpp.npy is of other sequences; delete it or make it again")
    reference = write_logits(folder / "logits_float64.npy", model, Rounding(), sequences)
    report: dict[str, Any] = {"positions_per_sequence": [len(ids) for ids in sequences]}

    def compare(name: str, logits: F32) -> None:
        ends = np.cumsum([len(ids) for ids in sequences])
        result = agreement(reference, logits)
        per_sequence = [float(part.mean()) for part in np.split(result.kl, ends[:-1])]
        report[name] = {**result.summary(), "mean_kl_per_sequence": per_sequence}
        print(f"{model.stem}: {name}: {json.dumps(report[name])}", flush=True)

    if theirs is not None:
        compare("llama_cpp_f32_kv", theirs[: len(reference)])
    for name, rounding in ROUNDINGS.items():
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npy") as file:
            compare(name, write_logits(Path(file.name), model, rounding, sequences))
    (folder / "float64.json").write_text(json.dumps(report, indent=1))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, help="only the first so many; all four take long on 2 cores")
    arguments = parser.parse_args()
    write_float64(arguments.model, arguments.results / arguments.model.stem, arguments.sequences)


if __name__ == "__main__":
    main()
