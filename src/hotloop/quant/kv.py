"""KV cache formats: the numpy definition of bfloat16 and int8 K and V; every kernel computes exactly these bits.

A stored vector is a function of that vector alone, so output does not depend on chunks and blocks can be copied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.activations import MAX_CODE

SMALLEST_AMAX = np.float32(2.0**-100)
"""A group whose largest magnitude is below this is all zeros: no scale or inverse comes near the ends of f32."""


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bfloat16 bits of float32 values, rounded to nearest, ties to even; NaNs stay NaN and become quiet."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x0040_0000)
    return (np.where(np.isnan(x), quiet, rounded) >> np.uint32(16)).astype(np.uint16).reshape(np.shape(x))


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantize_kv(x: NDArray[np.float32], group_size: int) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    """Quantize vectors to int8 in groups: x is about codes * scale of the group.

    Per group, in f32 with every operation rounded to nearest even: amax = max |x|, scale = bf16(amax / 127),
    code = x * (1 / scale), clamped to +-127 and rounded to an integer, ties to even. Two exceptions: amax < 2^-100 makes
    scale and codes 0; a NaN or an infinity in the group makes the scale NaN and the codes 0.

    x: float32 [..., n]; the last group may be shorter. Returns codes: int8 [..., n]; scales: bf16 bits
    [..., ceil(n / group_size)].
    """
    codes = np.empty(x.shape, np.int8)
    scales = np.empty((*x.shape[:-1], -(-x.shape[-1] // group_size)), np.uint16)
    for g in range(scales.shape[-1]):
        group = slice(g * group_size, (g + 1) * group_size)
        scales[..., g] = to_bf16(_scale(x[..., group]))
        codes[..., group] = _codes(x[..., group], from_bf16(scales[..., g]))
    return codes, scales


def dequantize_kv(codes: NDArray[np.int8], scales: NDArray[np.uint16], group_size: int) -> NDArray[np.float32]:
    """codes * scale of their group: float32 [..., n]."""
    return codes * np.repeat(from_bf16(scales), group_size, axis=-1)[..., : codes.shape[-1]]


def quantize_queries(q: NDArray[np.float32], group_size: int) -> NDArray[np.float32]:
    """What an int8 K meets instead of q [..., head_dim]: int8 in the groups of K with f32 scales, as float32 values."""
    values = np.empty(q.shape, np.float32)
    for begin in range(0, q.shape[-1], group_size):
        group = q[..., begin : begin + group_size]
        scale = _scale(group)
        values[..., begin : begin + group_size] = _codes(group, scale) * scale[..., None]
    return values


def _scale(group: NDArray[np.float32]) -> NDArray[np.float32]:
    amax = np.abs(group).max(axis=-1)
    small = np.where(amax < SMALLEST_AMAX, np.float32(0), amax / np.float32(MAX_CODE))
    return np.where(np.isfinite(amax), small, np.float32(np.nan)).astype(np.float32)


def _codes(group: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.int8]:
    usable = (scale > 0)[..., None]
    inverse = np.float32(1) / np.where(usable, scale[..., None], np.float32(1))
    scaled = np.where(usable, group, np.float32(0)) * inverse
    codes: NDArray[np.int8] = np.rint(scaled.clip(-MAX_CODE, MAX_CODE)).astype(np.int8)
    return codes
