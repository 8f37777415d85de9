"""The numpy definition of the quantized weight formats: an element's integer code, scale and minimum.

Each `unpack_*` takes superblocks as stored, uint8 [n, superblock_bytes], and returns (codes, scales,
minimums): codes int8 [n, superblock_size], scales float32 [n, groups], minimums the same or None. An
element is scale * code + minimum of its group, in float32, the product and the sum each rounded. The
docstrings give the byte layout of a superblock: offset, field, type. Source: the layouts of the ggml
project.

Each `pack_*` takes float32 [n, superblock_size], finite, and returns uint8 [n, superblock_bytes] with the
codes, scales and rounding that the reference quantizer of the ggml project chooses. K-quants: `k_quants`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Groups = tuple[NDArray[np.int8], Floats, Floats | None]

IQ4_CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""What a 4-bit index of IQ4_NL and IQ4_XS stands for."""
MXFP4_CODEBOOK = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""What a 4-bit index of MXFP4 stands for: twice the value of the e2m1 number."""


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


def unpack_q5_1(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 minimum f16; 4 high bits u32, bit i of element i; 8 low nibbles as in Q4_0."""
    high = np.unpackbits(superblocks[:, 4:8], axis=1, bitorder="little")
    codes = _nibbles(superblocks[:, 8:]) | high << np.uint8(4)
    return codes.view(np.int8), _f16(superblocks[:, 0:2]), _f16(superblocks[:, 2:4])


def unpack_q8_0(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 codes i8 x 32, -128 included."""
    return superblocks[:, 2:].view(np.int8), _f16(superblocks[:, 0:2]), None


def unpack_q2_k(superblocks: Bytes) -> Groups:
    """0 group scales (low) and minimums (high nibble) u4 x 16; 16 codes u2 x 256; 80 scale of scales f16;
    82 scale of minimums f16.

    scale and minimum are formed as in Q4_K, codes are placed as in `_bit_pairs`.
    """
    scales = _f16(superblocks[:, 80:82]) * (superblocks[:, 0:16] & 15).astype(np.float32)
    minimums = -(_f16(superblocks[:, 82:84]) * (superblocks[:, 0:16] >> 4).astype(np.float32))
    return _bit_pairs(superblocks[:, 16:80]).view(np.int8), scales, minimums


def unpack_q3_k(superblocks: Bytes) -> Groups:
    """0 high bits u1 x 256; 32 low bits u2 x 256; 96 group scales u6 x 16, stored + 32; 108 scale of scales
    f16.

    Element i has bit i div 32 of high byte i mod 32; low bits are placed as in `_bit_pairs`. Codes are stored
    + 4. Group g has the low four bits of its scale in nibble g div 8 of byte g mod 8 of the scales (low
    nibble first), the high two in bits 2 (g div 4) and up of byte 8 + g mod 4.
    scale = scale of scales * group scale.
    """
    packed = superblocks[:, 96:108]
    high = packed[:, None, 8:12] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    group_scales = _nibbles(packed[:, 0:8]) | high.reshape(-1, 16) << np.uint8(4)
    scales = _f16(superblocks[:, 108:110]) * (group_scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    codes = _bit_pairs(superblocks[:, 32:96]) | _bit_planes(superblocks[:, 0:32]) << np.uint8(2)
    return codes.astype(np.int8) - np.int8(4), scales, None


def unpack_q4_k(superblocks: Bytes) -> Groups:
    """0 scale of scales f16; 2 scale of minimums f16; 4 group scales and minimums; 16 codes u4 x 256.

    Bytes 32 c to 32 c + 31 of the codes hold group 2 c (low nibbles) and group 2 c + 1 (high nibbles).
    """
    scales, minimums = _scales_and_minimums(superblocks)
    codes = _nibbles(superblocks[:, 16:].reshape(-1, 32)).reshape(-1, 256)
    return codes.view(np.int8), scales, minimums


def unpack_q5_k(superblocks: Bytes) -> Groups:
    """As Q4_K, with the fifth bits of the codes, u1 x 256, at 16 and the low four from 48 on.

    Element i has bit i div 32 of byte i mod 32 of the fifth bits.
    """
    scales, minimums = _scales_and_minimums(superblocks)
    low = _nibbles(superblocks[:, 48:].reshape(-1, 32)).reshape(-1, 256)
    codes = low | _bit_planes(superblocks[:, 16:48]) << np.uint8(4)
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


def unpack_iq4_nl(superblocks: Bytes) -> Groups:
    """0 scale f16; 2 indices u4 x 32 into `IQ4_CODEBOOK`, placed as in Q4_0."""
    return IQ4_CODEBOOK[_nibbles(superblocks[:, 2:])], _f16(superblocks[:, 0:2]), None


def unpack_iq4_xs(superblocks: Bytes) -> Groups:
    """0 scale of scales f16; 2 high bits u2 x 8, 4 low bits u4 x 8 of the group scales; 8 indices u4 x 256.

    Group scales are stored + 32, low bits first. Bytes 16 g to 16 g + 15 of the indices hold group g as in
    IQ4_NL. scale = scale of scales * group scale.
    """
    low = superblocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15
    high = superblocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    group_scales = low.reshape(-1, 8) | high.reshape(-1, 8) << np.uint8(4)
    scales = _f16(superblocks[:, 0:2]) * (group_scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    indices = _nibbles(superblocks[:, 8:].reshape(-1, 16)).reshape(-1, 256)
    return IQ4_CODEBOOK[indices], scales, None


def unpack_mxfp4(superblocks: Bytes) -> Groups:
    """0 exponent u8, scale = 2^(exponent - 128); 1 indices u4 x 32 into `MXFP4_CODEBOOK`, placed as in Q4_0.

    The codebook has twice the values of e2m1, so the scale is half of what the exponent means in e8m0.
    """
    return MXFP4_CODEBOOK[_nibbles(superblocks[:, 1:])], _half_e8m0(superblocks[:, 0:1]), None


def pack_q4_0(x: Floats) -> Bytes:
    """The element of largest magnitude (the first of equals) becomes code -8."""
    scale = _extreme(x) / np.float32(-8)
    return np.hstack([_to_f16(scale), _join_nibbles(_truncate(x * _inverse(scale) + np.float32(8.5), 15))])


def pack_q4_1(x: Floats) -> Bytes:
    """Codes 0 to 15 span minimum to maximum."""
    minimum, maximum = _ends(x)
    with np.errstate(over="ignore"):
        scale = (maximum - minimum) / np.float32(15)
    packed_scale = _to_f16(scale)
    codes = _truncate((x - minimum) * _inverse(scale) + np.float32(0.5), 15)
    return np.hstack([packed_scale, _to_f16(minimum), _join_nibbles(codes)])


def pack_q5_0(x: Floats) -> Bytes:
    """The element of largest magnitude (the first of equals) becomes code -16."""
    scale = _extreme(x) / np.float32(-16)
    codes = _truncate(x * _inverse(scale) + np.float32(16.5), 31)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([_to_f16(scale), high, _join_nibbles(codes & np.uint8(15))])


def pack_q5_1(x: Floats) -> Bytes:
    """Codes 0 to 31 span minimum to maximum."""
    minimum, maximum = _ends(x)
    with np.errstate(over="ignore"):
        scale = (maximum - minimum) / np.float32(31)
    packed_scale = _to_f16(scale)
    codes = _truncate((x - minimum) * _inverse(scale) + np.float32(0.5), 31)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([packed_scale, _to_f16(minimum), high, _join_nibbles(codes & np.uint8(15))])


def pack_q8_0(x: Floats) -> Bytes:
    """The largest magnitude becomes +-127; halves are rounded away from zero."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(scale)
    whole = np.floor(np.abs(scaled))
    codes = np.copysign(whole + (np.abs(scaled) - whole >= np.float32(0.5)), scaled)
    return np.hstack([_to_f16(scale), codes.astype(np.int8).view(np.uint8)])


def pack_mxfp4(x: Floats) -> Bytes:
    """The largest magnitude gets e2m1's largest exponent; codes are the nearest, the first of equally near."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        # Just below a power of two the logarithm rounds up to a whole number, as the reference's float32 one does.
        logarithm = np.log2(largest.astype(np.float64)).astype(np.float32)
        exponent = (np.floor(logarithm) - 2 + 127).clip(0, 255).astype(np.uint8)
        values = _half_e8m0(exponent)[:, :, None] * MXFP4_CODEBOOK.astype(np.float32)
        indices = np.abs(values - x[:, :, None]).argmin(axis=2).astype(np.uint8)
    return np.hstack([exponent, _join_nibbles(indices)])


UNPACK: dict[str, Callable[[Bytes], Groups]] = {
    "Q4_0": unpack_q4_0,
    "Q4_1": unpack_q4_1,
    "Q5_0": unpack_q5_0,
    "Q5_1": unpack_q5_1,
    "Q8_0": unpack_q8_0,
    "Q2_K": unpack_q2_k,
    "Q3_K": unpack_q3_k,
    "Q4_K": unpack_q4_k,
    "Q5_K": unpack_q5_k,
    "Q6_K": unpack_q6_k,
    "IQ4_NL": unpack_iq4_nl,
    "IQ4_XS": unpack_iq4_xs,
    "MXFP4": unpack_mxfp4,
}
PACK: dict[str, Callable[[Floats], Bytes]] = {
    "Q4_0": pack_q4_0,
    "Q4_1": pack_q4_1,
    "Q5_0": pack_q5_0,
    "Q5_1": pack_q5_1,
    "Q8_0": pack_q8_0,
    "MXFP4": pack_mxfp4,
}


def _scales_and_minimums(superblocks: Bytes) -> tuple[Floats, Floats]:
    """The header of Q4_K and Q5_K: 0 scale of scales f16; 2 scale of minimums f16; 4 u6 x 16 in 12 bytes.

    With s the 12 bytes, for j in 0..3: group j has the scale s[j] & 63 and the minimum s[j + 4] & 63; group
    j + 4 has the scale (s[j + 8] & 15) + 16 (s[j] >> 6) and the minimum (s[j + 8] >> 4) + 16 (s[j + 4] >> 6).
    scale = scale of scales * group scale, minimum = -(scale of minimums * group minimum).
    """
    low_scales, low_minimums, rest = superblocks[:, 4:8], superblocks[:, 8:12], superblocks[:, 12:16]
    group_scales = np.concatenate([low_scales & 63, rest & 15 | low_scales >> 6 << 4], axis=1)
    group_minimums = np.concatenate([low_minimums & 63, rest >> 4 | low_minimums >> 6 << 4], axis=1)
    scales = _f16(superblocks[:, 0:2]) * group_scales.astype(np.float32)
    minimums = -(_f16(superblocks[:, 2:4]) * group_minimums.astype(np.float32))
    return scales, minimums


def _bit_pairs(packed: Bytes) -> Bytes:
    """uint8 [n, 64] -> [n, 256]: in each half of 128, element i has bits 2 (i div 32) and up of byte i mod 32."""
    pairs = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return pairs.reshape(-1, 256) & np.uint8(3)


def _bit_planes(packed: Bytes) -> Bytes:
    """uint8 [n, 32] -> [n, 256]: element i has bit i div 32 of byte i mod 32."""
    planes = packed[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]
    return planes.reshape(-1, 256) & np.uint8(1)


def _half_e8m0(exponents: Bytes) -> Floats:
    """uint8 [n, 1] -> float32 [n, 1], 2^(exponent - 128); the two smallest are subnormal."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


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


def _ends(x: Floats) -> tuple[Floats, Floats]:
    """The smallest and the largest element of each row, the first of equals: [n, 1]. min and max would leave it to the
    processor whether 0 or -0.
    """
    least, most = x.argmin(axis=1, keepdims=True), x.argmax(axis=1, keepdims=True)
    return np.take_along_axis(x, least, axis=1), np.take_along_axis(x, most, axis=1)


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
