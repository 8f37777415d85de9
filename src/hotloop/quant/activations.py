"""The definition of int8 activation quantization; every kernel computes exactly these bits."""

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 32
"""Consecutive elements along K that share one scale."""

MAX_CODE = 127
"""Codes lie in [-127, 127]: -128 is left out so that the range is symmetric and products fit the SIMD dot."""

SMALLEST_AMAX = np.float32(2.0**-119)
"""A group whose largest magnitude is below this is all zeros.

From here on amax / 127 is a normal number and 127 / amax < 2^126, so neither the scale nor its inverse can be
subnormal or infinite.
"""


def quantize_activations(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize activations to int8 in groups of 32 along K: x is about codes * scale of the group.

    Per group, in f32 with every operation rounded to nearest even: amax = max |x|, scale = amax / 127,
    inverse = 127 / amax, code = x * inverse rounded to an integer (ties to even) and clamped to [-127, 127].
    Two exceptions, decided by the bits of amax alone and so independent of the order of the maximum:

    - amax < 2^-119 (zeros and dust): scale 0, codes 0.
    - a NaN or an infinity in the group: scale NaN, codes 0, so every output that reads the group is NaN and
      none is plausibly wrong. (As integers, magnitude bits of NaN > infinity > finite, so one integer maximum
      over the bits finds both.)

    x: float32 [..., K], K a multiple of 32. Returns codes: int8 [..., K]; scales: float32 [..., K / 32].

    Raises: ValueError if x is not float32 or K is not a multiple of 32.
    """
    if x.dtype != np.float32:
        raise ValueError(f"activations must be float32, not {x.dtype}")
    if x.ndim == 0 or x.shape[-1] % GROUP_SIZE:
        raise ValueError(f"the last axis of {x.shape} is not a multiple of {GROUP_SIZE}")
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP_SIZE, GROUP_SIZE)
    magnitude_bits = np.ascontiguousarray(groups).view(np.uint32) & np.uint32(0x7FFFFFFF)
    amax = magnitude_bits.max(axis=-1, keepdims=True).view(np.float32)
    finite = np.isfinite(amax)
    usable = finite & (amax >= SMALLEST_AMAX)
    safe_amax = np.where(usable, amax, np.float32(1))
    inverse = np.float32(MAX_CODE) / safe_amax
    codes = np.rint(np.where(usable, groups, np.float32(0)) * inverse).clip(-MAX_CODE, MAX_CODE)
    scales = np.where(
        usable, safe_amax / np.float32(MAX_CODE), np.where(finite, np.float32(0), np.float32(np.nan))
    )
    return codes.astype(np.int8).reshape(x.shape), scales[..., 0]
