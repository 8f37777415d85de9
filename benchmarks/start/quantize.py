"""From a Hugging Face folder of random bf16 weights to a GGUF file, and to a first token: seconds and resident memory.

python benchmarks/start/quantize.py --work DIR [--shape 1b|0.5b] [--type q4_0] [--runs 3]

Writes the folder below DIR (once), and in turns starts `hotloop quantize FOLDER OUT` and `hotloop run FOLDER --quantize TYPE`
as new processes, the folder in the page cache. The last line is one JSON object (fields: schema.toml, quantize).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shape:
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int


SHAPES = {  # head_dim 64, embeddings tied, as the real ones
    "1b": Shape(2048, 16, 32, 8, 8192, 128256),
    "0.5b": Shape(896, 24, 14, 2, 4864, 151936),
    "tiny": Shape(256, 2, 4, 2, 512, 300),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds and bytes of one quantization into a file, and of one start from the folder."""

    file_s: float
    file_peak_bytes: int
    first_token_s: float
    run_peak_bytes: int


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The folder's tensors, without the norms' gains."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    kv_size = 64 * shape.num_kv_heads
    block = {
        "self_attn.q_proj": (64 * shape.num_heads, hidden), "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden), "self_attn.o_proj": (hidden, 64 * shape.num_heads),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": dims for name, dims in block.items()}
    return shapes


def layer_bytes(shape: Shape) -> int:
    """A layer's matrices in bf16."""
    return 2 * sum(prod(dims) for name, dims in tensor_shapes(shape).items() if name.startswith("model.layers.0."))


def write_folder(folder: Path, shape: Shape) -> None:
    """A llama model with weights of standard deviation 0.02: the same bytes for the same shape."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    gains = ["model.norm.weight"]
    for layer in range(shape.num_layers):
        gains += [f"model.layers.{layer}.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")]
    shapes = tensor_shapes(shape) | {name: (shape.hidden_size,) for name in gains}
    header: dict[str, Any] = {}
    offset = 0
    for name, dims in shapes.items():
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, offset := offset + 2 * prod(dims)]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for dims in shapes.values():
            values = np.ones(dims, np.float32) if len(dims) == 1 else _noise(rng, dims)
            file.write((values.view(np.uint32) >> 16).astype("<u2").data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size, "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads, "head_dim": 64,
        "vocab_size": shape.vocab_size, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
    }))  # fmt: skip
    _write_tokenizer(folder)


def _noise(rng: np.random.Generator, dims: tuple[int, ...]) -> NDArray[np.float32]:
    """Normal weights, drawn once and shifted: drawing a billion would take longer than the benchmark."""
    drawn = rng.standard_normal(1 << 20, np.float32) * np.float32(0.02)
    return np.resize(drawn, prod(dims)).reshape(dims)


def _write_tokenizer(folder: Path) -> None:
    """Bytes, one pair of them, and a token that ends an answer."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))] + ["th"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 257, "content": "<|end|>", **flags}], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "vocab": {text: i for i, text in enumerate(alphabet)}, "merges": ["t h"], "byte_fallback": False,
        },
    }))  # fmt: skip
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": None, "eos_token": "<|end|>", "add_bos_token": False})
    )


def run_once(folder: Path, out: Path, type_name: str) -> Run:
    file_s, file_peak = timed(["quantize", str(folder), str(out), "--type", type_name, "--no-report", "--force"])
    prompt = ["Hi", "--raw", "--max-tokens", "2", "--temperature", "0", "--max-model-len", "64"]
    first_s, run_peak = timed(["run", str(folder), *prompt, "--quantize", type_name])
    return Run(file_s, file_peak, first_s, run_peak)


def timed(arguments: Sequence[str]) -> tuple[float, int]:
    """Seconds from exec to the first byte on standard output, and the process's peak resident bytes."""
    started_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "hotloop.cli.main", *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    first_s = time.perf_counter() - started_s
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"hotloop {' '.join(arguments)} failed"
    return first_s, usage.ru_maxrss * 1024


def summary(
    type_name: str, shape: Shape, source_bytes: int, out_bytes: int, ceiling_bytes_per_s: float, runs: Sequence[Run]
) -> dict[str, Any]:
    """The JSON object: medians of times, the worst of memory."""
    weights = sum(prod(dims) for dims in tensor_shapes(shape).values())
    file_s = statistics.median(run.file_s for run in runs)
    first_s = [run.first_token_s for run in runs]
    return {
        "bench": "quantize",
        "type": type_name,
        "weights": weights,
        "source_bytes": source_bytes,
        "file_bytes": out_bytes,
        "layer_bytes": layer_bytes(shape),
        "quantize_s_median": file_s,
        "quantize_s_max": max(run.file_s for run in runs),
        "weights_per_s": weights / file_s,
        "first_token_s_median": statistics.median(first_s),
        "first_token_s_max": max(first_s),
        "quantize_peak_resident_bytes": max(run.file_peak_bytes for run in runs),
        "run_peak_resident_bytes": max(run.run_peak_bytes for run in runs),
        "peak_limit_bytes": int(1.3 * out_bytes) + layer_bytes(shape),
        "read_bandwidth_ceiling_bytes_per_s": ceiling_bytes_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    # In a process of its own: a child's peak memory starts from its parent's.
    probe = [sys.executable, "-m", "hotloop.cli.main", "machine", "--json"]
    ceiling_bytes_per_s = json.loads(subprocess.check_output(probe))["read_bandwidth_bytes_per_s"]
    print(f"ceiling: {ceiling_bytes_per_s / 1e9:.1f} GB/s")
    shape = SHAPES[args.shape]
    folder = args.work / f"random-{args.shape}"
    if not (folder / "tokenizer_config.json").exists():
        writer = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import quantize as q, pathlib\n"
                  "q.write_folder(pathlib.Path(sys.argv[2]), q.SHAPES[sys.argv[3]])"]  # fmt: skip
        subprocess.run([*writer, str(Path(__file__).parent), str(folder), args.shape], check=True)
    out = args.work / f"random-{args.shape}.{args.type}.gguf"
    run_once(folder, out, args.type)  # warm-up: the folder enters the page cache
    runs = []
    for _ in range(args.runs):
        run = run_once(folder, out, args.type)
        runs.append(run)
        print(
            f"file after {run.file_s:.2f} s, peak {run.file_peak_bytes / 1e6:.0f} MB; first token after "
            f"{run.first_token_s:.2f} s, peak {run.run_peak_bytes / 1e6:.0f} MB"
        )
    sizes = (folder / "model.safetensors").stat().st_size, out.stat().st_size
    print(json.dumps(summary(args.type, shape, *sizes, ceiling_bytes_per_s, runs)))


if __name__ == "__main__":
    main()
