"""The numpy definition of how weights become Q4_K, Q5_K and Q6_K superblocks; layouts: `codecs`.

A superblock has parameters on two levels (one scale of scales, an integer scale for each group), so there is no
closed form for the best one. Both searches here minimise a weighted squared error, in three stages:

1. For each group by itself, try several grids of codes; each grid's scale (and minimum) follows by least squares.
2. Express the groups' scales as integers times one f16 number, and try the integers' neighbours as well.
3. With all integers fixed, the f16 numbers follow by least squares over the superblock; keep them if they are better.

Every operation is rounded to float32 by itself and every sum runs in the order of its elements, so that
`csrc/formats/k_quants.cpp`, which works on the groups of a superblock side by side, yields the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_ROUND = np.float32(3 << 22)  # adding and subtracting it rounds to a whole number, half to even
_ONE = np.float32(1)
_LARGEST = np.float32(63 * 65504)  # what an element, or a scale of a group, may be for its f16 number to be finite
_TOO_LARGE = "weights too large: a scale or minimum does not fit f16 (65504 at most)"
_GRIDS_WITH_MINIMUM = 21
_GRIDS_WITHOUT_MINIMUM = 19


def pack_q4_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> uint8 [n, 144]. Raises ValueError as `codecs`' functions do."""
    scales, codes = _with_minimums(x, 15)
    low, high = codes[:, 0::2], codes[:, 1::2]
    return np.hstack([scales, (low | high << np.uint8(4)).reshape(-1, 128)])


def pack_q5_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> uint8 [n, 176]. Raises ValueError as `codecs`' functions do."""
    scales, codes = _with_minimums(x, 31)
    fifth = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little").reshape(-1, 32)
    low, high = codes[:, 0::2] & np.uint8(15), codes[:, 1::2] & np.uint8(15)
    return np.hstack([scales, fifth, (low | high << np.uint8(4)).reshape(-1, 128)])


def pack_q6_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> uint8 [n, 210]. Raises ValueError as `codecs`' functions do."""
    _check_size(x)
    d, scales, codes = _without_minimums(x.reshape(-1, 16, 16))
    halves = (codes + np.int8(32)).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = halves & np.uint8(15), halves >> np.uint8(4)
    nibbles = low[:, :, 0:2] | low[:, :, 2:4] << np.uint8(4)
    pairs = high[:, :, 0] | high[:, :, 1] << np.uint8(2) | high[:, :, 2] << np.uint8(4) | high[:, :, 3] << np.uint8(6)
    return np.hstack(
        [nibbles.reshape(-1, 128), pairs.reshape(-1, 64), scales.astype(np.int8).view(np.uint8), d.view(np.uint8)]
    )


# ---- Q4_K and Q5_K: element = d scale code - dmin minimum --------------------------------------------------------------


def _with_minimums(values: Floats, highest: int) -> tuple[Bytes, Bytes]:
    """The 16 bytes of scales, uint8 [n, 16], and the codes 0 to `highest`, uint8 [n, 8, 32]."""
    _check_size(values)
    x = values.reshape(-1, 8, 32)
    weights = _weights(x)
    top = np.float32(highest)
    with np.errstate(all="ignore"):
        scale, minimum = _best_affine(x, weights, top)
        d = _to_f16(_largest(scale) / np.float32(63))
        dmin = _to_f16(_largest(minimum) / np.float32(63))
        d_value, dmin_value = d.astype(np.float32), dmin.astype(np.float32)
        ls, lm = _best_integers(x, weights, top, scale, minimum, d_value, dmin_value)
        codes, error = _affine_codes(x, weights, top, d_value * ls, dmin_value * lm)
        refitted = _refit_affine(x, weights, ls, lm, codes)
        new_codes, new_error = _affine_codes(
            x, weights, top, refitted[0].astype(np.float32) * ls, refitted[1].astype(np.float32) * lm
        )
        better = _sum_groups(new_error) < _sum_groups(error)
    d = np.where(better, refitted[0], d)
    dmin = np.where(better, refitted[1], dmin)
    codes = np.where(better[..., None], new_codes, codes)
    fields = np.hstack([d.view(np.uint8), dmin.view(np.uint8), _join_sixes(ls, lm)])
    return fields, codes.astype(np.uint8)


def _weights(x: Floats) -> Floats:
    """How much an element's error counts: its magnitude and the group's root mean square; [n, groups, size]."""
    squares = _zeros(x)
    for j in range(x.shape[2]):
        squares = squares + x[:, :, j] * x[:, :, j]
    rms = np.sqrt(squares / np.float32(x.shape[2]))
    weights: Floats = rms[:, :, None] + np.abs(x)
    return weights


def _best_affine(x: Floats, w: Floats, top: np.float32) -> tuple[Floats, Floats]:
    """Stage 1: (scale, minimum), both >= 0, float32 [n, 8], of x = scale code - minimum."""
    low = np.minimum(x.min(axis=2), np.float32(0))
    high = x.max(axis=2)
    span = high - low
    sum_w, sum_wx = _zeros(x), _zeros(x)
    for j in range(x.shape[2]):
        sum_w = sum_w + w[:, :, j]
        sum_wx = sum_wx + w[:, :, j] * x[:, :, j]
    best_gain = np.full_like(low, -np.inf)
    scale, minimum = _zeros(x), np.float32(0) - low
    for grid in range(_GRIDS_WITH_MINIMUM):
        steps = top + np.float32(grid - 10) * np.float32(0.1)
        inverse = _finite(steps / span)
        sum_q, sum_qq, sum_qx = _zeros(x), _zeros(x), _zeros(x)
        for j in range(x.shape[2]):
            q = _nearest((x[:, :, j] - low) * inverse, top)
            wq = w[:, :, j] * q
            sum_q = sum_q + wq
            sum_qq = sum_qq + wq * q
            sum_qx = sum_qx + wq * x[:, :, j]
        determinant = sum_w * sum_qq - sum_q * sum_q
        s = (sum_w * sum_qx - sum_wx * sum_q) / determinant
        offset = (sum_qq * sum_wx - sum_q * sum_qx) / determinant
        above = offset > 0
        s = np.where(above, sum_qx / sum_qq, s)
        offset = np.where(above, np.float32(0), offset)
        gain = s * sum_qx + offset * sum_wx  # what the fit takes off the weighted sum of squares
        better = (determinant > 0) & (s > 0) & (s <= _LARGEST) & (gain > best_gain)
        best_gain = np.where(better, gain, best_gain)
        scale = np.where(better, s, scale)
        minimum = np.where(better, np.float32(0) - offset, minimum)
    return scale, minimum


def _best_integers(
    x: Floats, w: Floats, top: np.float32, scale: Floats, minimum: Floats, d: Floats, dmin: Floats
) -> tuple[Floats, Floats]:
    """Stage 2: 6-bit scales and minimums as whole float32 numbers [n, 8], the best of 3 x 3 neighbours each."""
    sixty_three = np.float32(63)
    ls0 = _nearest(scale * _finite(_ONE / d), sixty_three)
    lm0 = _nearest(minimum * _finite(_ONE / dmin), sixty_three)
    best_error = np.full_like(scale, np.inf)
    best_ls, best_lm = ls0, lm0
    for ds in (0, -1, 1):
        for dm in (0, -1, 1):
            ls = _clamp(ls0 + np.float32(ds), sixty_three)
            lm = _clamp(lm0 + np.float32(dm), sixty_three)
            _, error = _affine_codes(x, w, top, d * ls, dmin * lm)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best_ls = np.where(better, ls, best_ls)
            best_lm = np.where(better, lm, best_lm)
    return best_ls, best_lm


def _affine_codes(x: Floats, w: Floats, top: np.float32, scale: Floats, minimum: Floats) -> tuple[Floats, Floats]:
    """The nearest codes, whole float32 numbers [n, 8, 32], and their weighted squared error [n, 8]."""
    inverse = _finite(_ONE / scale)
    codes = np.empty_like(x)
    error = _zeros(x)
    for j in range(x.shape[2]):
        q = _nearest((x[:, :, j] + minimum) * inverse, top)
        difference = (scale * q - minimum) - x[:, :, j]
        error = error + (w[:, :, j] * difference) * difference
        codes[:, :, j] = q
    return codes, error


def _refit_affine(
    x: Floats, w: Floats, ls: Floats, lm: Floats, codes: Floats
) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Stage 3: (d, dmin), f16 [n, 1], that fit the integers best; 0 where there is no such fit."""
    aa, ab, bb, ax, bx = (_zeros(x) for _ in range(5))
    for j in range(x.shape[2]):
        a: Floats = ls * codes[:, :, j]
        wa: Floats = w[:, :, j] * a
        wb: Floats = w[:, :, j] * lm
        aa = aa + wa * a
        ab = ab + wa * lm
        bb = bb + wb * lm
        ax = ax + wa * x[:, :, j]
        bx = bx + wb * x[:, :, j]
    saa, sab, sbb, sax, sbx = (_sum_groups(each) for each in (aa, ab, bb, ax, bx))
    determinant = saa * sbb - sab * sab
    one_sided = sbb == 0  # all minimums are 0
    d = np.where(one_sided, sax / saa, (sbb * sax - sab * sbx) / determinant)
    dmin = np.where(one_sided, np.float32(0), (sab * sax - saa * sbx) / determinant)
    good = (d > 0) & (dmin >= 0) & (d < 65504) & (dmin < 65504)
    return np.where(good, d, 0).astype("<f2"), np.where(good, dmin, 0).astype("<f2")


def _join_sixes(ls: Floats, lm: Floats) -> Bytes:
    """Whole numbers [n, 8] twice -> uint8 [n, 12]: see `codecs`' Q4_K."""
    s, m = ls.astype(np.uint8), lm.astype(np.uint8)
    low, high = slice(0, 4), slice(4, 8)
    four, two = np.uint8(15), np.uint8(4)
    return np.hstack(
        [
            s[:, low] | s[:, high] >> two << np.uint8(6),
            m[:, low] | m[:, high] >> two << np.uint8(6),
            s[:, high] & four | (m[:, high] & four) << np.uint8(4),
        ]
    )


# ---- Q6_K: element = d scale code -------------------------------------------------------------------------------------


def _without_minimums(x: Floats) -> tuple[NDArray[np.float16], Floats, NDArray[np.int8]]:
    """x: [n, 16, 16]. Returns d f16 [n, 1], scales -128 to 127 as whole float32 [n, 16], codes -32 to 31 int8."""
    with np.errstate(all="ignore"):
        scale = _best_linear(x)
        extreme = _extreme(scale[:, None])
        d = _to_f16(extreme / np.float32(-128))
        d_value = d.astype(np.float32)
        nearest = (scale * _finite(_ONE / d_value)).clip(-128, 127)
        integer = (nearest + _ROUND) - _ROUND
        codes, error = _linear_codes(x, d_value * integer)
        sum_aa, sum_ax = _zeros(x), _zeros(x)
        for j in range(x.shape[2]):
            a: Floats = integer * codes[:, :, j]
            wa: Floats = (x[:, :, j] * x[:, :, j]) * a
            sum_aa = sum_aa + wa * a
            sum_ax = sum_ax + wa * x[:, :, j]
        fit = _sum_groups(sum_ax) / _sum_groups(sum_aa)
        refitted = np.where(np.abs(fit) < 65504, fit, 0).astype("<f2")
        new_codes, new_error = _linear_codes(x, refitted.astype(np.float32) * integer)
        better = _sum_groups(new_error) < _sum_groups(error)
    codes = np.where(better[..., None], new_codes, codes)
    return np.where(better, refitted, d), integer, codes.astype(np.int8)


def _best_linear(x: Floats) -> Floats:
    """Stage 1: scales [n, 16] of x = scale code; an element's error counts by its square."""
    extreme = _extreme(x)
    best_gain, scale = _zeros(x), _zeros(x)
    for grid in range(_GRIDS_WITHOUT_MINIMUM):
        steps = np.float32(-32) + np.float32(grid - 9) * np.float32(0.1)
        inverse = _finite(steps / extreme)
        sum_qq, sum_qx = _zeros(x), _zeros(x)
        for j in range(x.shape[2]):
            q = _signed(x[:, :, j] * inverse)
            wq = (x[:, :, j] * x[:, :, j]) * q
            sum_qq = sum_qq + wq * q
            sum_qx = sum_qx + wq * x[:, :, j]
        s = _finite(sum_qx / sum_qq)
        gain = s * sum_qx
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        scale = np.where(better, s, scale)
    return scale


def _extreme(x: Floats) -> Floats:
    """[n, m, k] -> [n, m]: of k elements the one of largest magnitude, the first of equals."""
    index = np.abs(x).argmax(axis=2)[:, :, None]
    return np.take_along_axis(x, index, axis=2)[:, :, 0]


def _linear_codes(x: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """The nearest codes, whole float32 numbers [n, 16, 16], and their weighted squared error [n, 16]."""
    inverse = _finite(_ONE / scale)
    codes = np.empty_like(x)
    error = _zeros(x)
    for j in range(x.shape[2]):
        q = _signed(x[:, :, j] * inverse)
        difference = scale * q - x[:, :, j]
        error = error + ((x[:, :, j] * x[:, :, j]) * difference) * difference
        codes[:, :, j] = q
    return codes, error


def _signed(values: Floats) -> Floats:
    """To a whole number from -32 to 31."""
    return (values.clip(-32, 31) + _ROUND) - _ROUND


# ---- both --------------------------------------------------------------------------------------------------------------


def _zeros(x: Floats) -> Floats:
    return np.zeros(x.shape[:2], np.float32)


def _clamp(values: Floats, highest: np.float32) -> Floats:
    return values.clip(np.float32(0), highest)


def _nearest(values: Floats, highest: np.float32) -> Floats:
    """To a whole number from 0 to `highest`."""
    return (_clamp(values, highest) + _ROUND) - _ROUND


def _finite(values: Floats) -> Floats:
    """0 in place of what is infinite or no number."""
    return np.where(np.isfinite(values), values, np.float32(0))


def _largest(values: Floats) -> Floats:
    largest: Floats = values.max(axis=1, keepdims=True)
    return largest


def _sum_groups(values: Floats) -> Floats:
    """[n, groups] -> [n, 1], in the order of the groups."""
    total: Floats = values[:, 0:1]
    for g in range(1, values.shape[1]):
        total = total + values[:, g : g + 1]
    return total


def _check_size(values: Floats) -> None:
    if (np.abs(values) > _LARGEST).any():
        raise ValueError(_TOO_LARGE)


def _to_f16(values: Floats) -> NDArray[np.float16]:
    """Raises ValueError if a value is too large for f16."""
    halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise ValueError(_TOO_LARGE)
    return halves
