"""The numpy definition of the quantized weight formats: an element's integer code, scale and minimum.

Each `unpack_*` takes superblocks as stored, uint8 [n, superblock_bytes], and returns (codes, scales,
minimums): codes int8 [n, superblock_size], scales float32 [n, groups], minimums the same or None. An
element is scale * code + minimum of its group, in float32, the product and the sum each rounded. The
docstrings give the byte layout of a superblock: offset, field, type. Source: the layouts of the ggml
project.

Each `pack_*` takes float32 [n, superblock_size], finite, and returns uint8 [n, superblock_bytes] with the
codes, scales and rounding that the reference quantizer of the ggml project chooses.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Groups = tuple[NDArray[np.int8], Floats, Floats | None]


def unpack_q4_0(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 codes u4 x 32, stored + 8: byte i holds element i (low) and i + 16 (high nibble)."""
    codes = _nibbles(superblocks[:, 2:]).astype(np.int8) - np.int8(8)
    return codes, _f16(superblocks[:, 0:2]), None


def unpack_q4_1(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 minimum f16; 4 codes u4 x 32: byte i holds element i (low) and i + 16 (high nibble)."""
    return _nibbles(superblocks[:, 4:]).view(np.int8), _f16(superblocks[:, 0:2]), _f16(superblocks[:, 2:4])


def unpack_q5_0(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 high bits u32, bit i of element i; 6 low nibbles as in Q4_0. Codes are stored + 16."""
    high = np.unpackbits(superblocks[:, 2:6], axis=1, bitorder="little")
    codes = _nibbles(superblocks[:, 6:]) | high << np.uint8(4)
    return codes.astype(np.int8) - np.int8(16), _f16(superblocks[:, 0:2]), None


def unpack_q8_0(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 codes i8 x 32, -128 included."""
    return superblocks[:, 2:].view(np.int8), _f16(superblocks[:, 0:2]), None


def unpack_q4_k(superblocks: Bytes) -> Groups:
    """0 scale of scales f16; 2 scale of minimums f16; 4 group scales and minimums; 16 codes u4 x 256.

    The 8 group scales and 8 group minimums are u6. With s the 12 bytes from 4 on, for j in 0..3: group j has
    the scale s[j] & 63 and the minimum s[j + 4] & 63; group j + 4 has the scale
    (s[j + 8] & 15) + 16 (s[j] >> 6) and the minimum (s[j + 8] >> 4) + 16 (s[j + 4] >> 6).
    Bytes 32 c to 32 c + 31 of the codes hold group 2 c (low nibbles) and group 2 c + 1 (high nibbles).
    scale = scale of scales * group scale, minimum = -(scale of minimums * group minimum).
    """
    low_scales, low_minimums, rest = superblocks[:, 4:8], superblocks[:, 8:12], superblocks[:, 12:16]
    group_scales = np.concatenate([low_scales & 63, rest & 15 | low_scales >> 6 << 4], axis=1)
    group_minimums = np.concatenate([low_minimums & 63, rest >> 4 | low_minimums >> 6 << 4], axis=1)
    scales = _f16(superblocks[:, 0:2]) * group_scales.astype(np.float32)
    minimums = -(_f16(superblocks[:, 2:4]) * group_minimums.astype(np.float32))
    codes = _nibbles(superblocks[:, 16:].reshape(-1, 32)).reshape(-1, 256)
    return codes.view(np.int8), scales, minimums


def unpack_q6_k(superblocks: Bytes) -> Groups:
    """0 low nibbles u4 x 256; 128 high bits u2 x 256; 192 group scales i8 x 16; 208 scale of scales f16.

    Each half of 128 elements has 64 bytes of low nibbles and 32 bytes of high bits. In a half, element i has
    nibble byte i mod 64 (its low nibble if i < 64, else its high one) and bits 2 (i div 32) and up of high
    byte i mod 32. Codes are stored + 32. scale = scale of scales * group scale.
    """
    low = _nibbles(superblocks[:, 0:128].reshape(-1, 64))
    high = superblocks[:, 128:192].reshape(-1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = low | high.reshape(-1, 128) << np.uint8(4)
    scales = _f16(superblocks[:, 208:210]) * superblocks[:, 192:208].view(np.int8).astype(np.float32)
    return codes.reshape(-1, 256).astype(np.int8) - np.int8(32), scales, None


def pack_q4_0(x: Floats) -> Bytes:
    """The element of largest magnitude (the first of equals) becomes code -8."""
    scale = _extreme(x) / np.float32(-8)
    return np.hstack([_to_f16(scale), _join_nibbles(_truncate(x * _inverse(scale) + np.float32(8.5), 15))])


def pack_q4_1(x: Floats) -> Bytes:
    """Codes 0 to 15 span minimum to maximum."""
    minimum = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        scale = (x.max(axis=1, keepdims=True) - minimum) / np.float32(15)
    packed_scale = _to_f16(scale)
    codes = _truncate((x - minimum) * _inverse(scale) + np.float32(0.5), 15)
    return np.hstack([packed_scale, _to_f16(minimum), _join_nibbles(codes)])


def pack_q5_0(x: Floats) -> Bytes:
    """The element of largest magnitude (the first of equals) becomes code -16."""
    scale = _extreme(x) / np.float32(-16)
    codes = _truncate(x * _inverse(scale) + np.float32(16.5), 31)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([_to_f16(scale), high, _join_nibbles(codes & np.uint8(15))])


def pack_q8_0(x: Floats) -> Bytes:
    """The largest magnitude becomes +-127; halves are rounded away from zero."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(scale)
    whole = np.floor(np.abs(scaled))
    codes = np.copysign(whole + (np.abs(scaled) - whole >= np.float32(0.5)), scaled)
    return np.hstack([_to_f16(scale), codes.astype(np.int8).view(np.uint8)])


UNPACK: dict[str, Callable[[Bytes], Groups]] = {
    "Q4_0": unpack_q4_0,
    "Q4_1": unpack_q4_1,
    "Q5_0": unpack_q5_0,
    "Q8_0": unpack_q8_0,
    "Q4_K": unpack_q4_k,
    "Q6_K": unpack_q6_k,
}
PACK: dict[str, Callable[[Floats], Bytes]] = {
    "Q4_0": pack_q4_0,
    "Q4_1": pack_q4_1,
    "Q5_0": pack_q5_0,
    "Q8_0": pack_q8_0,
}


def _f16(pairs: Bytes) -> Floats:
    """uint8 [n, 2] -> float32 [n, 1]."""
    return np.ascontiguousarray(pairs).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """uint8 [n, k] -> [n, 2 k]: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _join_nibbles(codes: Bytes) -> Bytes:
    """The inverse of `_nibbles`."""
    low, high = np.split(codes, 2, axis=1)
    return low | high << np.uint8(4)


def _to_f16(values: Floats) -> Bytes:
    """float32 [n, 1] -> uint8 [n, 2]. Raises ValueError if a value is too large for f16."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise ValueError("weights too large: a scale or minimum does not fit f16 (65504 at most)")
    return halves.view(np.uint8)


def _extreme(x: Floats) -> Floats:
    """The element of largest magnitude of each row, the first of equals: [n, 1]."""
    index = np.abs(x).argmax(axis=1, keepdims=True)
    return np.take_along_axis(x, index, axis=1)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, or 0 where that is infinite: f16 rounds such a scale to 0, so the codes are without
    effect.
    """
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _truncate(values: Floats, highest: int) -> Bytes:
    """Non-negative values -> integers towards zero, at most `highest`."""
    return values.astype(np.uint8).clip(0, highest).astype(np.uint8)
