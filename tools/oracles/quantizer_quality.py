"""hotloop's quantizers beside llama.cpp's, from the same weights: KL(source || quantized) of both, on the same text.

    python tools/oracles/quantizer_quality.py MODEL.gguf ... --llama-python PYTHON [--types q4_0 q4_k_m q8_0]
        [--results build/oracles] [--tokens 1024]

MODEL: any file. The source that both quantize is its weights as F16, each moved by up to half a step of its own group, the
same way in every run: weights that lie on a grid already are no test, because a quantizer that finds the grid loses nothing.
The noise is as large as the error of the file's own quantization, so the source is a model about as good.

Compared are the formats of all tensors, their bytes, and, where bytes differ, the divergence from the source with float
activations: that of the weights alone. llama.cpp must load our file, and continues a text with both. Per type one line, then
one line of JSON. Exit status 1 if a mean KL is more than 1.05 times llama.cpp's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.bench.quality import measure, native_logits, quality_text
from hotloop.quant.codecs import UNPACK
from hotloop.quant.formats import WEIGHT_FORMATS, dequantize, quantize, unpack
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.model_file import ModelFile
from hotloop.weights.model_writer import write_model
from hotloop.weights.quantization import QUANTIZATIONS
from hotloop.weights.quantized_model import QuantizedModel

MAX_KL_RATIO = 1.05
NUM_PROMPT_TOKENS = 200
HERE = Path(__file__).parent


class Dithered(QuantizedModel):
    """A model as F16, its quantized weights moved off their grid."""

    def __init__(self, source: ModelFile) -> None:
        super().__init__(source, "f16", requantize=True)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        before = self.source.tensors[name]
        if before.format not in UNPACK:
            return super().read_rows(name, start, stop)
        shape = (stop - start, before.shape[-1])
        data = self.source.read_rows(name, start, stop)
        values = dequantize(before.format, data, shape)
        steps = np.abs(unpack(before.format, data, shape).scales).repeat(WEIGHT_FORMATS[before.format].group_size, axis=-1)
        rng = np.random.default_rng([zlib.crc32(name.encode()), start])
        return quantize("F16", values + steps * rng.uniform(-0.5, 0.5, shape).astype(np.float32))


def written(source: Path, name: str, target: Path) -> Path:
    """The source quantized by hotloop."""
    with GGUFFile.open(source) as model:
        write_model(QuantizedModel(model, name, requantize=True), target, overwrite=True)
    return target


def llama(python: str, source: Path, out: Path, name: str, *more: str) -> str:
    number = str(QUANTIZATIONS[name].file_type)
    command = [python, str(HERE / "llama_quantize.py"), str(source), str(out), number, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def differences(ours: GGUFFile, theirs: GGUFFile) -> tuple[list[str], float]:
    """Tensors whose formats differ, and the share of bytes that are equal in all others."""
    assert ours.tensors.keys() == theirs.tensors.keys()
    other_formats = [n for n in ours.tensors if ours.tensors[n].format != theirs.tensors[n].format]
    equal = total = 0
    for name in ours.tensors.keys() - set(other_formats):
        a, b = ours.data(name), theirs.data(name)
        equal += int((a == b).sum())
        total += len(a)
    return other_formats, equal / total


def logits_of(path: Path, ids: list[int]) -> Iterator[NDArray[np.float32]]:
    with GGUFFile.open(path) as model:
        for chunk in native_logits(model, ids, activations="f32"):
            yield chunk.copy()


def compare(
    source: Path, source_logits: list[NDArray[np.float32]], name: str, args: argparse.Namespace, ids: list[int]
) -> dict[str, Any]:
    ours_path = written(source, name, source.with_name(f"ours.{name}.gguf"))
    theirs_path = source.with_name(f"llamacpp.{name}.gguf")
    llama(args.llama_python, source, theirs_path, name)
    with GGUFFile.open(ours_path) as ours, GGUFFile.open(theirs_path) as theirs:
        other_formats, equal = differences(ours, theirs)
    prompt = source.with_name("prompt.json")
    prompt.write_text(json.dumps(ids[:NUM_PROMPT_TOKENS]))
    continued = [
        json.loads(llama(args.llama_python, source, path, name, "--greedy", str(prompt))) for path in (ours_path, theirs_path)
    ]
    same = np.cumprod(np.equal(*continued)).sum()
    result: dict[str, Any] = {
        "type": name, "other_formats": other_formats, "equal_bytes": equal, "greedy_tokens_alike": int(same),
    }  # fmt: skip
    if not other_formats and equal == 1:
        return result | {"kl_ratio": 1.0}
    distances = [measure(ids, source_logits, logits_of(path, ids)) for path in (ours_path, theirs_path)]
    kl = [float(each.kl_nats.mean()) for each in distances]
    # The texts are the same, so the error of the ratio is that of paired differences.
    error = float((distances[0].kl_nats - distances[1].kl_nats).std() / np.sqrt(len(ids)) / kl[1])
    return result | {
        "mean_kl_nats": kl[0], "llamacpp_mean_kl_nats": kl[1], "kl_ratio": kl[0] / kl[1], "kl_ratio_standard_error": error,
        "top1_agreement": float(distances[0].same_best.mean()),
        "llamacpp_top1_agreement": float(distances[1].same_best.mean()),
        "perplexity": distances[0].figures()["perplexity"],
        "llamacpp_perplexity": distances[1].figures()["perplexity"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--llama-python", required=True)
    parser.add_argument("--types", nargs="+", choices=list(QUANTIZATIONS), default=["q4_0", "q4_k_m", "q8_0"])
    parser.add_argument("--results", type=Path, default=Path("build/oracles"))
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    passed = True
    for model in args.models:
        folder: Path = args.results / model.stem
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.f16.gguf"
        with GGUFFile.open(model) as file:
            write_model(Dithered(file), source, overwrite=True)
            ids = Tokenizer.from_metadata(file.metadata).encode(quality_text())[: args.tokens]
        logits = list(logits_of(source, ids))
        for name in args.types:
            result = {"model": model.stem, "tokens": len(ids), **compare(source, logits, name, args, ids)}
            good = result["kl_ratio"] <= MAX_KL_RATIO
            passed &= good
            print(
                f"{'pass' if good else 'FAIL'}: {model.stem} {name}: KL {result['kl_ratio']:.3f} times llama.cpp's, "
                f"{result['equal_bytes']:.1%} of the bytes equal, {len(result['other_formats'])} tensors in other formats, "
                f"{result['greedy_tokens_alike']} of 32 greedy tokens alike in llama.cpp"
            )
            print(json.dumps(result), flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
