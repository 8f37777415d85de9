"""The table of weight formats: how many bits, in groups of how many elements, in how many bytes.

One table serves everyone who needs a format's name, ggml type id or size: the GGUF reader, `inspect`, the
loader and the traffic accounting. Formats that hotloop can only name and size (no codec, no kernel) are in it
too, so that a file that uses them can be described instead of rejected as garbage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.quant import codecs
from hotloop.quant.codecs import UNPACK
from hotloop.quant.k_quants import pack_q4_k, pack_q5_k, pack_q6_k


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the elements of a row are stored.

    A row is a whole number of superblocks, stored one after the other. A superblock is the smallest unit that
    can be read by itself; it holds one or more groups, and the elements of a group share one scale (and one
    zero point or minimum where the format has one). Most formats have one group per superblock.

    name: the name in the GGUF world, for example "Q4_K".
    type_id: the ggml type id, as stored in a GGUF tensor entry.
    group_size: elements that share one scale; 1 for formats without scales.
    superblock_size: elements per superblock; a row length must be a multiple of it.
    superblock_bytes: bytes per superblock.
    """

    name: str
    type_id: int
    group_size: int
    superblock_size: int
    superblock_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per element, scales included."""
        return 8 * self.superblock_bytes / self.superblock_size

    def row_bytes(self, row_size: int) -> int:
        """Bytes of a row of `row_size` elements. Raises ValueError unless it is whole superblocks."""
        if row_size % self.superblock_size:
            raise ValueError(
                f"a row of {row_size} elements is not a multiple of {self.superblock_size}, "
                f"the superblock of {self.name}"
            )
        return row_size // self.superblock_size * self.superblock_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape` (numpy order, rows last axis). Raises ValueError like `row_bytes`."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1])


# name, type id, group_size, superblock_size, superblock_bytes. Source: the ggml type enumeration.
_TABLE = (
    ("F32", 0, 1, 1, 4),
    ("F16", 1, 1, 1, 2),
    ("Q4_0", 2, 32, 32, 18),
    ("Q4_1", 3, 32, 32, 20),
    ("Q5_0", 6, 32, 32, 22),
    ("Q5_1", 7, 32, 32, 24),
    ("Q8_0", 8, 32, 32, 34),
    ("Q8_1", 9, 32, 32, 36),
    ("Q2_K", 10, 16, 256, 84),
    ("Q3_K", 11, 16, 256, 110),
    ("Q4_K", 12, 32, 256, 144),
    ("Q5_K", 13, 32, 256, 176),
    ("Q6_K", 14, 16, 256, 210),
    ("Q8_K", 15, 256, 256, 292),
    ("IQ2_XXS", 16, 32, 256, 66),
    ("IQ2_XS", 17, 16, 256, 74),
    ("IQ3_XXS", 18, 32, 256, 98),
    ("IQ1_S", 19, 32, 256, 50),
    ("IQ4_NL", 20, 32, 32, 18),
    ("IQ3_S", 21, 32, 256, 110),
    ("IQ2_S", 22, 16, 256, 82),
    ("IQ4_XS", 23, 32, 256, 136),
    ("I8", 24, 1, 1, 1),
    ("I16", 25, 1, 1, 2),
    ("I32", 26, 1, 1, 4),
    ("I64", 27, 1, 1, 8),
    ("F64", 28, 1, 1, 8),
    ("IQ1_M", 29, 16, 256, 56),
    ("BF16", 30, 1, 1, 2),
    ("TQ1_0", 34, 256, 256, 54),
    ("TQ2_0", 35, 256, 256, 66),
    ("MXFP4", 39, 32, 32, 17),
    ("NVFP4", 40, 16, 64, 36),
    ("Q1_0", 41, 128, 128, 18),
)

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType({row[0]: WeightFormat(*row) for row in _TABLE})
"""Every format hotloop can name and size, by name."""

FORMATS_BY_TYPE_ID: Mapping[int, WeightFormat] = MappingProxyType(
    {weight_format.type_id: weight_format for weight_format in WEIGHT_FORMATS.values()}
)
"""The same formats by ggml type id."""

PACK: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.uint8]]] = MappingProxyType(
    {**codecs.PACK, "Q4_K": pack_q4_k, "Q5_K": pack_q5_k, "Q6_K": pack_q6_k}
)
"""From float32 [n, superblock_size], finite, to uint8 [n, superblock_bytes]."""

DEQUANTIZABLE_FORMATS: tuple[str, ...] = ("F32", "F16", "BF16", *UNPACK)
"""Formats that `dequantize` defines."""
QUANTIZABLE_FORMATS: tuple[str, ...] = ("F32", "F16", "BF16", *PACK)
"""Formats that `quantize` writes."""

_CHUNK_ELEMENTS = 1 << 18  # bounds the temporaries of a large tensor and keeps them in cache


@dataclass(frozen=True, slots=True)
class QuantizedGroups:
    """A tensor as integers and group parameters: element = scale * code + minimum of its group, in float32.

    codes: int8 [..., K]. scales: float32 [..., K / group_size]. minimums: like scales, or None where the
    format has none. The product and the sum are each rounded to float32.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    minimums: NDArray[np.float32] | None


def unpack(format: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> QuantizedGroups:
    """Return the codes, scales and minimums of a tensor in a quantized format.

    data: uint8 [tensor_bytes], as in the file. shape: numpy order, K last.

    Raises: ValueError if the format has no codes (floats), is not defined here, or data and shape disagree.
    """
    weight_format = WEIGHT_FORMATS.get(format)
    if weight_format is None or format not in UNPACK:
        raise ValueError(
            f"no integer codes are defined for the format {format!r}; known: {', '.join(UNPACK)}"
        )
    codes, scales, minimums = UNPACK[format](_superblocks(weight_format, data, shape))
    group_shape = (*shape[:-1], shape[-1] // weight_format.group_size)
    return QuantizedGroups(
        codes.reshape(shape),
        scales.reshape(group_shape),
        None if minimums is None else minimums.reshape(group_shape),
    )


def dequantize(format: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the exact values a tensor stands for: float32 of `shape`. This is the definition of the formats.

    F16 and BF16 are widened, which is exact; quantized formats are scale * code + minimum (see
    `QuantizedGroups`). Scales that are infinite or NaN give infinite or NaN elements.

    data: uint8 [tensor_bytes], as in the file. shape: numpy order, K last.

    Raises: ValueError if the format is not defined here, or data and shape disagree.
    """
    if format not in DEQUANTIZABLE_FORMATS:
        known = ", ".join(DEQUANTIZABLE_FORMATS)
        raise ValueError(f"the format {format!r} cannot be dequantized; known: {known}")
    weight_format = WEIGHT_FORMATS[format]
    superblocks = _superblocks(weight_format, data, shape)
    out = np.empty((len(superblocks), weight_format.superblock_size), np.float32)
    step = _CHUNK_ELEMENTS // weight_format.superblock_size
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(superblocks), step):
            chunk = slice(start, start + step)
            out[chunk] = _dequantize_superblocks(weight_format, np.ascontiguousarray(superblocks[chunk]))
    return out.reshape(shape)


def quantize(format: str, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return `values` in a weight format, as it would lie in a file: uint8 [tensor_bytes].

    values: any float dtype, [..., K], K last, converted to float32 first. F16 and BF16 round to nearest even.

    Raises: ValueError if the format cannot be written here, K is not a multiple of its superblock, or
    (quantized formats) a value is NaN or infinite, or so large that its scale does not fit f16.
    """
    if format not in QUANTIZABLE_FORMATS:
        raise ValueError(f"cannot quantize to the format {format!r}; known: {', '.join(QUANTIZABLE_FORMATS)}")
    weight_format = WEIGHT_FORMATS[format]
    weight_format.tensor_bytes(values.shape)
    floats = np.ascontiguousarray(values, np.float32)
    if format == "F32":
        stored: NDArray[Any] = floats.astype("<f4")
    elif format == "F16":
        with np.errstate(over="ignore"):
            stored = floats.astype("<f2")
    elif format == "BF16":
        stored = _to_bf16(floats)
    elif not np.isfinite(floats).all():
        raise ValueError(f"cannot quantize NaN or infinite weights to {format}")
    else:
        stored = PACK[format](floats.reshape(-1, weight_format.superblock_size))
    return stored.reshape(-1).view(np.uint8)


def _superblocks(
    weight_format: WeightFormat, data: NDArray[np.uint8], shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """data as uint8 [superblocks, superblock_bytes], checked against `shape`."""
    nbytes = weight_format.tensor_bytes(shape)
    if data.dtype != np.uint8 or data.size != nbytes:
        raise ValueError(
            f"a {weight_format.name} tensor of shape {shape} is {nbytes} bytes, "
            f"not {data.size} of {data.dtype}"
        )
    return data.reshape(-1, weight_format.superblock_bytes)


def _dequantize_superblocks(
    weight_format: WeightFormat, superblocks: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """uint8 [n, superblock_bytes] -> float32 [n, superblock_size]."""
    if weight_format.name == "F32":
        return superblocks.view("<f4")
    if weight_format.name == "F16":
        return superblocks.view("<f2").astype(np.float32)
    if weight_format.name == "BF16":
        return (superblocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    codes, scales, minimums = UNPACK[weight_format.name](superblocks)
    groups = codes.reshape(*scales.shape, weight_format.group_size)
    values = scales[..., None] * groups.astype(np.float32)
    if minimums is not None:
        values += minimums[..., None]
    return values.reshape(len(superblocks), -1)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; a NaN becomes quiet and keeps its sign and upper payload."""
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype("<u2")
