"""Which tensors a model must have, and what to do about the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hotloop.errors import ModelFileError
from hotloop.models.config import ModelConfig
from hotloop.quant.activations import GROUP_SIZE
from hotloop.quant.formats import DEQUANTIZABLE_FORMATS
from hotloop.weights.model_file import ModelFile, quote

TensorShapes = Mapping[str, tuple[int, ...]]

_log = logging.getLogger(__name__)

SUPPORTED_FORMATS = DEQUANTIZABLE_FORMATS
"""Formats of matrices that the op sets compute with."""
VECTOR_FORMATS = ("F32", "F16", "BF16")
"""Formats of norm gains, biases and rope factors."""

# Sizes by the keys that say them, and where they stand in the weights: a tensor, and an axis of it.
_SIZES: Mapping[tuple[str, ...], tuple[str, int]] = {
    ("embedding_length",): ("token_embd.weight", 1),
    ("feed_forward_length",): ("blk.0.ffn_down.weight", 1),
    ("attention.head_count", "attention.key_length"): ("blk.0.attn_output.weight", 1),
    ("attention.head_count_kv", "attention.key_length"): ("blk.0.attn_k.weight", 0),
}
_FEW, _MANY = 5, 1000  # tensors in one message

# An unknown tensor of these names takes part in the forward pass; any other is baggage (a vision tower, say).
_PART_OF_THE_MODEL = ("blk.", "token_embd", "output", "rope_", "position_embd", "token_types", "per_layer")


def dense_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors of a pre-norm decoder with gated feed-forward: name -> shape, rows (outputs) first."""
    return model_shapes(config, ("attn_norm", "ffn_norm"))


def sandwich_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Those of a decoder with norms before and after both halves of a block."""
    return model_shapes(config, ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"))


def model_shapes(config: ModelConfig, norms: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Those of a decoder with these norms in every block."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    projections = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size}
    if config.fused_qkv:
        projections = {"attn_qkv": q_size + 2 * kv_size}
    block: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, hidden) for name, rows in projections.items()}
    if config.qkv_bias:
        block |= {f"{name}.bias": (rows,) for name, rows in projections.items()}
    block["attn_output.weight"] = (hidden, q_size)
    if config.attention_output_bias:
        block["attn_output.bias"] = (hidden,)
    if config.qk_norm:
        sizes = (q_size, kv_size) if config.qk_norm == "row" else (config.head_dim, config.head_dim)
        block |= {f"attn_{part}_norm.weight": (size,) for part, size in zip("qk", sizes, strict=True)}
    if config.feed_forward == "gated" and not config.fused_gate_up:
        block["ffn_gate.weight"] = (inner, hidden)
    block["ffn_up.weight"] = (2 * inner if config.fused_gate_up else inner, hidden)
    block["ffn_down.weight"] = (hidden, inner)
    if config.feed_forward_bias:
        block |= {"ffn_up.bias": (inner,), "ffn_down.bias": (hidden,)}
    for name in norms:
        block |= _norm_shapes(config, name)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, hidden)}
    shapes |= per_layer(config, block)
    shapes |= _norm_shapes(config, "output_norm")
    if config.learned_positions:
        shapes["position_embd.weight"] = (config.context_length, hidden)
    if not config.tied_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for rope in {layer.rope for layer in config.layers if layer.rope is not None}:
        shapes |= dict.fromkeys(rope.tensors, (rope.dim // 2,))
    return shapes


def _norm_shapes(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    parts = ("weight", "bias") if config.norm == "layer" else ("weight",)
    return {f"{name}.{part}": (config.hidden_size,) for part in parts}


def per_layer(config: ModelConfig, block: TensorShapes) -> dict[str, tuple[int, ...]]:
    """`block`'s tensors for every layer, under their full names."""
    return {f"blk.{i}.{name}": shape for i in range(config.num_layers) for name, shape in block.items()}


def check_tensors(model_file: ModelFile, expected: TensorShapes, architecture: str) -> None:
    """Compare a file's tensors with `expected`; each kind of difference is one error that lists all, or the first and the key
    of the metadata that explains them.

    Raises: ModelFileError for tensors that are missing, have another shape or a format hotloop does not
    compute with, or that belong to the model but are not implemented. Other extra tensors are a warning.
    """
    called = model_file.source_name
    missing = [name for name in expected if name not in model_file.tensors]
    if missing:
        cause = _number_of_layers(model_file, expected, architecture, missing)
        raise ModelFileError(
            f"{model_file.path}: {len(missing)} tensors of a {architecture} model are missing: "
            f"{_listed([*map(called, missing)], _FEW if cause else _MANY)}{cause}"
        )
    wrong_shapes = []
    wrong_formats = []
    for name, shape in expected.items():
        tensor = model_file.tensors[name]
        if tensor.shape != shape:
            wrong_shapes.append(f"{called(name)} is {list(tensor.shape)} instead of {list(shape)}")
        elif len(shape) == 2 and shape[1] % GROUP_SIZE:
            wrong_shapes.append(f"{called(name)} has rows of {shape[1]}, which is no multiple of {GROUP_SIZE}")
        supported = VECTOR_FORMATS if len(shape) == 1 else SUPPORTED_FORMATS
        if tensor.format not in supported:
            wrong_formats.append(f"{called(name)} is {tensor.format} (supported: {', '.join(supported)})")
    if wrong_shapes:
        cause = _wrong_size(model_file, expected, architecture) if len(wrong_shapes) > 1 else ""
        raise ModelFileError(
            f"{model_file.path}: tensors of the wrong shape ({len(wrong_shapes)}): {_listed(wrong_shapes, _FEW)}{cause}"
        )
    if wrong_formats:
        raise ModelFileError(
            f"{model_file.path}: tensors of unsupported formats ({len(wrong_formats)}): {_listed(wrong_formats, _FEW)}"
        )
    extra = [name for name in model_file.tensors if name not in expected]
    unknown = [name for name in extra if name.startswith(_PART_OF_THE_MODEL)]
    if unknown:
        cause = _number_of_layers(model_file, expected, architecture, unknown)
        raise ModelFileError(
            f"{model_file.path}: tensors that hotloop does not implement for {architecture}, and that may change "
            f"the result: {_listed([*map(called, unknown)], _FEW if cause else _MANY)}{cause}"
        )
    if extra:
        _log.warning("%s: %d tensors are not used: %s", model_file.path, len(extra), _listed([*map(quote, extra)], 10))


def _wrong_size(model_file: ModelFile, expected: TensorShapes, architecture: str) -> str:
    """The first size of the metadata that contradicts the weights, in words; empty where none does."""
    for keys, (name, axis) in _SIZES.items():
        if name not in expected:
            continue
        stated, found = expected[name], model_file.tensors[name].shape
        if len(found) == len(stated) and found[axis] != stated[axis]:
            called = " * ".join(_called(model_file, architecture, key) for key in keys)
            return (
                f". Probably {called} is wrong: it is {stated[axis]}, but {model_file.source_name(name)} says {found[axis]}"
            )
    return ""


def _number_of_layers(model_file: ModelFile, expected: TensorShapes, architecture: str, names: list[str]) -> str:
    """Whether `names`, which only one side has, are those of layers that only one side has, in words; empty if not."""
    stated, found = (1 + max(map(layer_of, side), default=-1) for side in (expected, model_file.tensors))
    if stated == found or min(map(layer_of, names)) < min(stated, found):
        return ""
    called = _called(model_file, architecture, "block_count")
    return f". Probably {called} is wrong: it is {stated}, but there are weights of {found} layers"


def _called(model_file: ModelFile, architecture: str, key: str) -> str:
    return model_file.source_key(f"{architecture}.{key}") or f"{architecture}.{key}"


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to, -1 for none."""
    match name.split("."):
        case ["blk", number, *_] if number.isdecimal() and len(number) < 10:
            return int(number)
    return -1


def _listed(items: list[str], most: int) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
