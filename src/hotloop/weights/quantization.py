"""Which format each tensor of a model gets when it is quantized: one table, used on loading and for files.

The mixtures are llama.cpp's (tested against files it made), so that a name promises the same size and quality here as there:
the output matrix, whose errors go straight into the logits, has six bits where others have four or five; a `_m` mixture
also gives six bits to half of the value and down projections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hotloop.config import QuantizationName
from hotloop.quant.formats import WEIGHT_FORMATS

FLOAT_FORMATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Quantization:
    """name: as a user gives it. format: of most matrices. output: of the one that makes the logits. file_type: the number
    of the mixture in a file's `general.file_type`."""

    name: QuantizationName
    format: str
    output: str
    file_type: int


_TABLE = (
    Quantization("f32", "F32", "F32", 0),
    Quantization("f16", "F16", "F16", 1),
    Quantization("bf16", "BF16", "BF16", 32),
    Quantization("q8_0", "Q8_0", "Q8_0", 7),
    Quantization("q4_0", "Q4_0", "Q6_K", 2),
    Quantization("q4_1", "Q4_1", "Q6_K", 3),
    Quantization("q5_0", "Q5_0", "Q6_K", 8),
    Quantization("q5_1", "Q5_1", "Q6_K", 9),
    Quantization("q4_k_s", "Q4_K", "Q6_K", 14),
    Quantization("q4_k_m", "Q4_K", "Q6_K", 15),
    Quantization("q5_k_s", "Q5_K", "Q6_K", 16),
    Quantization("q5_k_m", "Q5_K", "Q6_K", 17),
    Quantization("q6_k", "Q6_K", "Q6_K", 18),
)
_BY_NAME: dict[str, Quantization] = {each.name: each for each in _TABLE}

QUANTIZATIONS: Mapping[str, Quantization] = MappingProxyType(
    {**_BY_NAME, "q4_k": _BY_NAME["q4_k_m"], "q5_k": _BY_NAME["q5_k_m"]}
)
"""By every name that a user may give."""

# What a row length that is no multiple of 256 gets instead: about as many bits in groups of 32.
_NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_LAYER = re.compile(r"blk\.(\d+)\.")
_KEPT = re.compile(r"(position_embd|token_types|rope_.*|.*ffn_gate_inp)\.weight")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a mixture asks of a model. tied: the embedding makes the logits, too."""

    num_layers: int
    tied: bool


def tensor_format(quantization: Quantization, name: str, shape: tuple[int, ...], model: ModelFacts) -> str:
    """The format of a tensor. Vectors, tables of positions and expert routers are small and sensitive: F32."""
    if len(shape) < 2 or not name.endswith(".weight") or _KEPT.fullmatch(name):
        return "F32"
    return _fitting(_wanted(quantization, name, model), shape[-1])


def is_fallback(quantization: Quantization, name: str, shape: tuple[int, ...], model: ModelFacts) -> bool:
    """Whether the tensor's row length keeps it from the format that the mixture has for it."""
    actual = tensor_format(quantization, name, shape, model)
    return actual != "F32" and actual != _wanted(quantization, name, model)


def _wanted(quantization: Quantization, name: str, model: ModelFacts) -> str:
    if name == "output.weight" or (model.tied and name == "token_embd.weight"):
        return quantization.output
    match = _LAYER.match(name)
    if match is None:
        return quantization.format
    layer, part = int(match[1]), name[match.end() :].removesuffix(".weight")
    if quantization.name in ("q4_k_m", "q5_k_m"):
        if part in ("attn_v", "ffn_down", "ffn_down_exps") and _is_sensitive(layer, model.num_layers):
            return "Q6_K"
        if part == "attn_qkv":
            return "Q5_K" if quantization.name == "q4_k_m" else "Q6_K"
    if quantization.name == "q4_k_s":
        first = {"attn_v": 4, "ffn_down": model.num_layers // 8, "ffn_down_exps": model.num_layers // 8}
        if layer < first.get(part, 0):
            return "Q5_K"
    return quantization.format


def _is_sensitive(layer: int, num_layers: int) -> bool:
    """The first and last eighth, and every third in between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _fitting(format: str, row_size: int) -> str:
    while format not in FLOAT_FORMATS and row_size % WEIGHT_FORMATS[format].superblock_size:
        format = _NARROW.get(format, "F16")
    return format
