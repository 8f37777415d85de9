"""Write a model of a real shape with random weights: the same work for every engine, and nothing to download.

python benchmarks/peers/write_random_model.py OUT.gguf [--shape llama-3.2-1b] [--format q4_0|q4_k_m|q8_0] [--layers N]

The blocks are random bytes with small finite scales, the norms are 1, and the tokenizer section is a byte-level BPE that
other engines accept too. Formats follow the usual mixes: q4_0 has a Q6_K embedding (which is also the output), q4_k_m has
Q6_K in the embedding and in attn_v and ffn_down of half of the layers, q8_0 is Q8_0 throughout. Rows that are not whole
superblocks of a K-quant fall back to Q5_0 and Q8_0.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.weights.gguf_writer import WritableTensor, WritableValue, write_gguf

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Shape:
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_base: float
    context_length: int


SHAPES = {
    "llama-3.2-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, 500000.0, 131072),
    "llama-3.2-3b": Shape(3072, 28, 24, 8, 128, 8192, 128256, 500000.0, 131072),
    "smollm2-135m": Shape(576, 30, 9, 3, 64, 1536, 49152, 100000.0, 8192),
}
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15}  # general.file_type


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--format", choices=_FILE_TYPES, default="q4_0")
    parser.add_argument("--layers", type=int, help="fewer layers than the real shape has")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, num_layers=args.layers)
    write_random_model(args.out, shape, args.format)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB")


def write_random_model(path: Path, shape: Shape, mix: str) -> None:
    """The file at ``path``; the same bytes for the same arguments."""
    rng = np.random.default_rng(0)
    tensors: dict[str, WritableTensor] = {}
    for name, dims in tensor_shapes(shape).items():
        if len(dims) == 1:
            tensors[name] = ("F32", dims, np.ones(dims, np.float32))
        else:
            weight_format = format_of(name, shape.num_layers, mix)
            if dims[-1] % WEIGHT_FORMATS[weight_format].superblock_size:
                weight_format = _FALLBACKS[weight_format]
            tensors[name] = (weight_format, dims, random_blocks(rng, weight_format, dims))
    write_gguf(path, metadata(shape, mix), tensors)


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (q_size, hidden),
        "attn_k": (kv_size, hidden),
        "attn_v": (kv_size, hidden),
        "attn_output": (hidden, q_size),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        shapes |= {f"blk.{layer}.{name}.weight": dims for name, dims in block.items()}
    return {**shapes, "output_norm.weight": (hidden,)}


def format_of(name: str, num_layers: int, mix: str) -> str:
    """The weight format of a matrix in a mix."""
    if mix == "q8_0":
        return "Q8_0"
    if name == "token_embd.weight":
        return "Q6_K"
    if mix == "q4_0":
        return "Q4_0"
    layer, kind = int(name.split(".")[1]), name.split(".")[2]
    # The first and the last eighth, and every third layer between them.
    eighth = num_layers // 8
    more_bits = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more_bits and kind in ("attn_v", "ffn_down") else "Q4_K"


def random_blocks(rng: np.random.Generator, weight_format: str, dims: tuple[int, ...]) -> Bytes:
    """A matrix as stored: random quants, scales that make weights of about 1 / sqrt(cols)."""
    block_bytes = WEIGHT_FORMATS[weight_format].superblock_bytes
    num_blocks = WEIGHT_FORMATS[weight_format].tensor_bytes(dims) // block_bytes
    blocks = np.frombuffer(rng.bytes(num_blocks * block_bytes), np.uint8).reshape(num_blocks, block_bytes).copy()
    _SCALERS[weight_format](rng, blocks, dims[-1] ** -0.5)
    return blocks


def _scales(rng: np.random.Generator, blocks: Bytes, column: int, size: float) -> None:
    """Write float16 scales of about ``size`` into two bytes of every block."""
    scales = (size * rng.uniform(0.75, 1.25, len(blocks))).astype("<f2")
    blocks[:, column : column + 2] = scales.view(np.uint8).reshape(-1, 2)


def _scale_q4_0(rng: np.random.Generator, blocks: Bytes, size: float) -> None:
    _scales(rng, blocks, 0, size / 4.6)


def _scale_q5_0(rng: np.random.Generator, blocks: Bytes, size: float) -> None:
    _scales(rng, blocks, 0, size / 9.2)


def _scale_q8_0(rng: np.random.Generator, blocks: Bytes, size: float) -> None:
    _scales(rng, blocks, 0, size / 74)


def _scale_q4_k(rng: np.random.Generator, blocks: Bytes, size: float) -> None:
    # w = d * scale * q - dmin * min with scale and min of 6 bits: 7.5 d, the mean of q, centres it.
    _scales(rng, blocks, 0, size / 320)
    _scales(rng, blocks, 2, 7.5 * size / 320)


def _scale_q6_k(rng: np.random.Generator, blocks: Bytes, size: float) -> None:
    blocks[:, 192:208] = rng.integers(-15, 16, (len(blocks), 16), np.int8).view(np.uint8)
    _scales(rng, blocks, 208, size / 165)


_SCALERS: dict[str, Callable[[np.random.Generator, Bytes, float], None]] = {
    "Q4_0": _scale_q4_0,
    "Q5_0": _scale_q5_0,
    "Q8_0": _scale_q8_0,
    "Q4_K": _scale_q4_k,
    "Q6_K": _scale_q6_k,
}


def metadata(shape: Shape, mix: str) -> dict[str, WritableValue]:
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "general.file_type": _FILE_TYPES[mix],
        "general.quantization_version": 2,
        "llama.block_count": shape.num_layers,
        "llama.context_length": shape.context_length,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": shape.rope_base,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab_size,
        **_tokenizer(shape.vocab_size),
    }


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """Byte-level BPE: a token for every byte, one merge, an end token, the rest made up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [256 + i for i in range(256 - len(printable))]
    tokens = [chr(code_point) for code_point in printable + others]
    tokens += ["th", "<|end_of_text|>"]
    types = [1] * (len(tokens) - 1) + [3]
    missing = vocab_size - len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + [f"<unused{i}>" for i in range(missing)],
        "tokenizer.ggml.token_type": np.array(types + [1] * missing, np.int32),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


if __name__ == "__main__":
    main()
