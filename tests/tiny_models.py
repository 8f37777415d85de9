"""Tiny random models as complete GGUF files: tokenizer, chat template, some hundred kilobytes of weights.

`write_tiny_model(path, "llama", num_kv_heads=1, formats={"*": "Q4_1", "token_embd": "Q8_0"})` is all an
engine test needs. The weights follow from (seed, tensor name) alone, bit for bit on every machine and numpy
version: models that differ in one thing share everything else, and golden files need not store them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.formats import DEQUANTIZABLE_FORMATS, WEIGHT_FORMATS, quantize
from hotloop.weights.gguf_writer import WritableTensor, WritableValue, write_gguf
from tiny_tokenizer import tokenizer_metadata

ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "gemma2", "gemma3", "granite", "phi3", "smollm3", "gpt2", "starcoder2", "olmo2", "glm4",
)  # fmt: skip
FORMATS = DEQUANTIZABLE_FORMATS

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Shape of a tiny model. window: of gemma's and olmo2's sliding layers (all layers of others, if set).

    rotary_dim: rotated elements of a head, None for all. freq_factors, long_factors, short_factors: the tensors
    rope_freqs.weight, rope_factors_long.weight and rope_factors_short.weight, [rotated elements / 2].
    """

    architecture: str = "llama"
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 96
    vocab_size: int = 300
    context_length: int = 128
    window: int | None = None
    rope_base: float = 10000.0
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    rotary_dim: int | None = None
    freq_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    short_factors: tuple[float, ...] | None = None


_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"head_dim": 32},
    "gemma2": {"num_layers": 4, "window": 16, "tied": True},
    "gemma3": {"num_layers": 7, "num_kv_heads": 1, "window": 16, "rope_base": 1e6, "tied": True},
    "granite": {},
    "phi3": {"num_kv_heads": 4},
    "smollm3": {"num_layers": 4},
    "gpt2": {"num_kv_heads": 4, "qkv_bias": True, "output_bias": True, "feed_forward_bias": True},
    "starcoder2": {"qkv_bias": True, "output_bias": True, "feed_forward_bias": True},
    "olmo2": {},
    "glm4": {"head_dim": 32, "rotary_dim": 16, "qkv_bias": True},
}
# Keys beyond the sizes. Caps and multipliers are such that each shows in the logits.
_METADATA: Mapping[str, Mapping[str, WritableValue]] = {
    "gemma2": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0},
    "granite": {"embedding_scale": 1.5, "residual_scale": 0.625, "attention.scale": 0.375, "logit_scale": 1.25},
}
_GEMMA = ("gemma2", "gemma3")
_PERMUTED = ("llama", "granite", "smollm3")
_PRE_NORMS = ("attn_norm", "ffn_norm")
_SANDWICH = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
_NORMS: Mapping[str, Sequence[str]] = {
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "glm4": _SANDWICH,
    "olmo2": ("post_attention_norm", "post_ffw_norm"),
}
_LAYER_NORM = ("gpt2", "starcoder2")
_FUSED_QKV = ("gpt2", "phi3")
_FUSED_GATE_UP = ("glm4", "phi3")
_NO_GATE = ("gpt2", "starcoder2", *_FUSED_GATE_UP)
# For K-quants and IQ4_XS, which come in superblocks of 256 columns.
_SUPERBLOCK_SIZES = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}


def tiny_config(architecture: str = "llama", **overrides: Any) -> TinyConfig:
    """The default shape of an architecture with some fields of TinyConfig replaced."""
    return replace(TinyConfig(architecture, **_DEFAULTS[architecture]), **overrides)


def write_tiny_model(
    path: str | Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    formats: str | Mapping[str, str] = "F32",
    metadata: Mapping[str, WritableValue | None] | None = None,
    tensors: Mapping[str, WritableTensor | None] | None = None,
    **overrides: Any,
) -> Path:
    """Write a random model of `architecture` and return its path.

    formats: of the matrices: one for all, or by part of the tensor's name ("ffn_down", "blk.1.", ...), the
    first part that fits, with "*" for the rest. Where one with superblocks of 256 is among them, sizes default
    to multiples of 256. metadata, tensors: keys and tensors to add or replace; None takes one out. overrides: fields of
    TinyConfig.
    """
    if isinstance(formats, str):
        formats = {"*": formats}
    if any(WEIGHT_FORMATS[format].superblock_size == 256 for format in formats.values()):
        overrides = {**_SUPERBLOCK_SIZES, **overrides}
    config = tiny_config(architecture, **overrides)
    keys: dict[str, WritableValue | None] = {**model_metadata(config), **(metadata or {})}
    contents: dict[str, WritableTensor | None] = {}
    for name, shape in tensor_shapes(config).items():
        format = "F32" if len(shape) == 1 else _format_of(name, formats)
        contents[name] = (format, shape, _tensor_bytes(config, seed, name, shape, format))
    contents |= tensors or {}
    write_gguf(
        path,
        {key: value for key, value in keys.items() if value is not None},
        {name: tensor for name, tensor in contents.items() if tensor is not None},
    )
    return Path(path)


def model_metadata(config: TinyConfig) -> dict[str, WritableValue]:
    """All keys of the file, tokenizer included."""
    a = config.architecture
    metadata: dict[str, WritableValue] = {
        "general.architecture": a,
        "general.name": f"tiny {a}",
        f"{a}.block_count": config.num_layers,
        f"{a}.context_length": config.context_length,
        f"{a}.embedding_length": config.hidden_size,
        f"{a}.feed_forward_length": config.intermediate_size,
        f"{a}.attention.head_count": config.num_heads,
        f"{a}.attention.head_count_kv": config.num_kv_heads,
        f"{a}.attention.key_length": config.head_dim,
        f"{a}.attention.value_length": config.head_dim,
        f"{a}.attention.layer_norm_{'' if a in _LAYER_NORM else 'rms_'}epsilon": 1e-6,
    }
    if a != "gpt2":
        metadata[f"{a}.rope.freq_base"] = config.rope_base
    if config.rotary_dim is not None:
        metadata[f"{a}.rope.dimension_count"] = config.rotary_dim
    if config.window is not None:
        metadata[f"{a}.attention.sliding_window"] = config.window
    metadata |= {f"{a}.{key}": value for key, value in _METADATA.get(a, {}).items()}
    return metadata | tokenizer_metadata(config.vocab_size, sentencepiece=a in _GEMMA)


def tensor_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the file: name -> shape, rows first."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q_size, hidden),
        "attn_k.weight": (kv_size, hidden),
        "attn_v.weight": (kv_size, hidden),
        "attn_output.weight": (hidden, q_size),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if config.qkv_bias:
        block |= {"attn_q.bias": (q_size,), "attn_k.bias": (kv_size,), "attn_v.bias": (kv_size,)}
    if config.output_bias:
        block["attn_output.bias"] = (hidden,)
    if config.feed_forward_bias:
        block |= {"ffn_up.bias": (inner,), "ffn_down.bias": (hidden,)}
    if config.architecture in ("qwen3", "gemma3"):
        block |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    if config.architecture == "olmo2":
        block |= {"attn_q_norm.weight": (q_size,), "attn_k_norm.weight": (kv_size,)}
    if config.architecture in _FUSED_GATE_UP:
        block["ffn_up.weight"] = (2 * inner, hidden)
    if config.architecture in _FUSED_QKV:
        for part in ("weight", "bias"):
            rows = sum(block.pop(f"attn_{name}.{part}", (0,))[0] for name in "qkv")
            if rows:
                block[f"attn_qkv.{part}"] = (rows, hidden) if part == "weight" else (rows,)
    if config.architecture in _NO_GATE:
        del block["ffn_gate.weight"]
    norms = _NORMS.get(config.architecture, _PRE_NORMS)
    for name in set(_PRE_NORMS) - set(norms):
        del block[f"{name}.weight"]
    norm_parts = ("weight", "bias") if config.architecture in _LAYER_NORM else ("weight",)
    block |= {f"{name}.{part}": (hidden,) for name in norms for part in norm_parts}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {f"output_norm.{part}": (hidden,) for part in norm_parts}
    if config.architecture == "gpt2":
        shapes["position_embd.weight"] = (config.context_length, hidden)
    if not config.tied:
        shapes["output.weight"] = (config.vocab_size, hidden)
    return shapes | {name: (len(factors),) for name, factors in rope_tensors(config).items()}


def rope_tensors(config: TinyConfig) -> dict[str, tuple[float, ...]]:
    """The rope tensors of the file."""
    factors = {"freqs": config.freq_factors, "factors_long": config.long_factors, "factors_short": config.short_factors}
    return {f"rope_{name}.weight": values for name, values in factors.items() if values is not None}


def checkpoint_tensor(config: TinyConfig, seed: int, name: str, shape: tuple[int, ...]) -> Floats:
    """A tensor as the checkpoint has it, that is before a converter permutes q and k: float32 of `shape`.

    Matrices keep a unit variance, logits get a standard deviation of 2 to 3; gains lie in 0.75 to 1.25 in
    steps of 2^-10, so that gemma's checkpoint form (gain - 1) is exact. gemma's gains are the complete ones.
    """
    if name in rope_tensors(config):
        return np.array(rope_tensors(config)[name], np.float32)
    noise = _uniform(seed, name, math.prod(shape)).reshape(shape)
    if name.endswith("norm.weight"):
        return ((1 + np.rint(noise * 256) / 1024) * _gain(config, name)).astype(np.float32)
    if name.endswith("bias"):
        return (noise * (0.125 if "norm" in name else 0.5)).astype(np.float32)
    return (noise * _bound(config, name, shape[1])).astype(np.float32)


def _gain(config: TinyConfig, name: str) -> float:
    """Gemma's embeddings are tied: blocks must outweigh them, or the model would repeat its input."""
    if config.architecture in _GEMMA and ("post_" in name or name == "output_norm.weight"):
        return 4.0 if config.architecture == "gemma2" else 2.0
    return 1.0


def _bound(config: TinyConfig, name: str, cols: int) -> float:
    if name == "token_embd.weight" and not config.tied:
        return math.sqrt(3)
    if name == "position_embd.weight":
        return 0.5
    if "ffn_down" in name and config.architecture in _LAYER_NORM:
        return 2 * math.sqrt(3 / cols)  # GELU alone lets half of the deviation through
    # gemma multiplies its embedding rows by sqrt(hidden_size).
    head = "token_embd.weight" if config.tied and config.architecture not in _GEMMA else "output.weight"
    return (2.5 if name == head else 1) * math.sqrt(3 / cols)


def _uniform(seed: int, name: str, count: int) -> NDArray[np.float64]:
    """Multiples of 2^-23 in [-1, 1): float64 [count]. Raw generator output is the same in every numpy."""
    words = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(-(-count // 2))
    halves = words.astype("<u8").view("<u4")[:count]
    return (halves >> 8).astype(np.float64) / 2**23 - 1


def _tensor_bytes(
    config: TinyConfig, seed: int, name: str, shape: tuple[int, ...], format: str
) -> NDArray[np.uint8]:
    if format in _RECIPES:
        return _random_superblocks(config, seed, name, shape, format)
    values = checkpoint_tensor(config, seed, name, shape)
    if config.architecture in _PERMUTED and ".attn_q." in name:
        values = permute(values, config.num_heads)
    if config.architecture in _PERMUTED and ".attn_k." in name:
        values = permute(values, config.num_kv_heads)
    return quantize(format, values)


def permute(rows: Floats, num_heads: int) -> Floats:
    """Reorder q or k rows, head by head, from half-split to adjacent rotated pairs: [heads * head_dim, ...].

    What GGUF converters do to the weights and biases of the llama architecture and its relatives.
    """
    heads = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


# Formats whose bytes are random: the deviation of an element with random bytes and scale 1; the f16 fields, offset and
# factor. A minimum's factor is the mean of a code, so that the elements are spread around zero.
_RECIPES: Mapping[str, tuple[float, Sequence[tuple[int, float]]]] = {
    "Q2_K": (14, [(80, 1), (82, 1.5)]),
    "Q3_K": (43, [(108, 1)]),
    "Q4_K": (290, [(0, 1), (2, 7.5)]),
    "Q5_K": (530, [(0, 1), (2, 15.5)]),
    "Q6_K": (1370, [(208, 1)]),
    "IQ4_NL": (67, [(0, 1)]),
    "IQ4_XS": (1250, [(0, 1)]),
}


def _random_superblocks(
    config: TinyConfig, seed: int, name: str, shape: tuple[int, ...], format: str
) -> NDArray[np.uint8]:
    """Random valid bytes of a format, scaled like the values of `checkpoint_tensor`."""
    superblock = WEIGHT_FORMATS[format].superblock_bytes
    count = WEIGHT_FORMATS[format].tensor_bytes(shape) // superblock
    noise = (_uniform(seed, name, count * superblock) + 1) * 128
    data = noise.astype(np.uint8).reshape(count, superblock)
    deviation = _bound(config, name, shape[1]) / math.sqrt(3)
    spread, fields = _RECIPES[format]
    scale = deviation / spread * (0.75 + data[:, :1] / 512)
    for offset, factor in fields:
        data[:, offset : offset + 2] = (scale * factor).astype("<f2").view(np.uint8)
    return data.reshape(-1)


def _format_of(name: str, formats: Mapping[str, str]) -> str:
    fitting = (format for part, format in formats.items() if part != "*" and part in name)
    return next(fitting, formats.get("*", "F32"))


def random_tokens(seed: int, count: int, vocab_size: int = 300) -> list[int]:
    """Token ids for a prompt, the same everywhere."""
    return [int(x) for x in ((_uniform(seed, "tokens", count) + 1) / 2 * vocab_size).astype(np.int64)]


def every_format() -> Sequence[tuple[str, str | Mapping[str, str]]]:
    """(id, formats) for tests that run through each format once, and a mixture of the real files' kind."""
    mixed = {"token_embd": "Q8_0", "ffn_down": "Q6_K", "attn_v": "Q8_0", "ffn_gate": "Q5_0", "*": "Q4_K"}
    low_bits = {"token_embd": "Q5_K", "output": "Q6_K", "ffn_down": "Q3_K", "attn_v": "IQ4_XS", "*": "Q2_K"}
    return [*((format, format) for format in FORMATS), ("mixed", mixed), ("mixed-2", low_bits)]


def every_format_of_some() -> Sequence[tuple[str, str, str | Mapping[str, str]]]:
    """(architecture, id, formats): every format in those whose matrices are used in a way of their own, else two."""
    return [
        (architecture, id, formats)
        for architecture in ARCHITECTURES
        for id, formats in every_format()
        if architecture in ("llama", "gemma3", "phi3") or id in ("F16", "mixed")
    ]
