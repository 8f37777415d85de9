"""Write a model of a real shape with random weights: the same work for every engine, and nothing to download.

python benchmarks/peers/write_random_model.py OUT.gguf [--shape llama-3.2-1b] [--format q4_0|q4_k_m|q8_0|every] [--layers N]

The blocks are random bytes with small finite scales, the norms are 1, and the tokenizer section is a byte-level BPE that
other engines accept too. Formats follow the usual mixes: q4_0 has a Q6_K embedding (which is also the output), q4_k_m has
Q6_K in the embedding and in attn_v and ffn_down of half of the layers, q8_0 is Q8_0 throughout. Rows that are not whole
superblocks of a K-quant fall back to Q5_0 and Q8_0. every has one weight format per layer, for `hotloop bench kernels`;
--shape every-format is the shape for it.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.formats import DEQUANTIZABLE_FORMATS, WEIGHT_FORMATS, quantize
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
    "every-format": Shape(2048, len(DEQUANTIZABLE_FORMATS), 32, 32, 64, 4096, 512, 10000.0, 8192),
}
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15, "every": 0}  # general.file_type


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
    if mix == "every":
        return DEQUANTIZABLE_FORMATS[int(name.split(".")[1]) % len(DEQUANTIZABLE_FORMATS)]
    if mix == "q4_0":
        return "Q4_0"
    layer, kind = int(name.split(".")[1]), name.split(".")[2]
    # The first and the last eighth, and every third layer between them.
    eighth = num_layers // 8
    more_bits = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more_bits and kind in ("attn_v", "ffn_down") else "Q4_K"


@dataclass(frozen=True, slots=True)
class Scales:
    """Where a block has its float16 scales (byte offsets) and how large they are for weights of about 1."""

    d: int
    d_size: float
    m: int | None = None  # the offset of the minimum
    m_size: float = 0.0


# With random codes (and random 4- or 6-bit scales in K-quants) a block has about unit deviation and mean 0.
_SCALES: dict[str, Scales] = {
    "Q4_0": Scales(0, 1 / 4.6),
    "Q4_1": Scales(0, 1 / 4.6, 2, -7.5 / 4.6),
    "Q5_0": Scales(0, 1 / 9.2),
    "Q5_1": Scales(0, 1 / 9.2, 2, -15.5 / 9.2),
    "Q8_0": Scales(0, 1 / 74),
    "Q2_K": Scales(80, 1 / 11, 82, 1.5 / 11),
    "Q3_K": Scales(108, 1 / 42),
    "Q4_K": Scales(0, 1 / 320, 2, 7.5 / 320),
    "Q5_K": Scales(0, 1 / 640, 2, 15.5 / 640),
    "Q6_K": Scales(208, 1 / 165),
    "IQ4_NL": Scales(0, 1 / 74),
    "IQ4_XS": Scales(0, 1 / 1400),
}


def random_blocks(rng: np.random.Generator, weight_format: str, dims: tuple[int, ...]) -> Bytes:
    """A matrix as stored: random codes, scales that make weights of about 1 / sqrt(cols)."""
    size = dims[-1] ** -0.5
    if weight_format in ("F32", "F16", "BF16"):
        return quantize(weight_format, rng.normal(0, size, dims))
    block_bytes = WEIGHT_FORMATS[weight_format].superblock_bytes
    num_blocks = WEIGHT_FORMATS[weight_format].tensor_bytes(dims) // block_bytes
    blocks = np.frombuffer(rng.bytes(num_blocks * block_bytes), np.uint8).reshape(num_blocks, block_bytes).copy()
    if weight_format == "MXFP4":
        blocks[:, 0] = 120  # 2^-7 in units of half a code
        return blocks
    scales = _SCALES[weight_format]
    _write_scales(rng, blocks, scales.d, size * scales.d_size)
    if scales.m is not None:
        _write_scales(rng, blocks, scales.m, size * scales.m_size)
    if weight_format == "Q6_K":
        blocks[:, 192:208] = rng.integers(-15, 16, (len(blocks), 16), np.int8).view(np.uint8)
    return blocks


def _write_scales(rng: np.random.Generator, blocks: Bytes, column: int, size: float) -> None:
    """Write float16 scales of about ``size`` into two bytes of every block."""
    scales = (size * rng.uniform(0.75, 1.25, len(blocks))).astype("<f2")
    blocks[:, column : column + 2] = scales.view(np.uint8).reshape(-1, 2)


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
