"""Integer codes and scales as superblocks of a format: the inverse of `codecs.UNPACK` for formats of a scale and codes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 32
CODE_RANGES: Mapping[str, tuple[int, int]] = {"Q4_0": (-8, 7), "Q5_0": (-16, 15), "Q8_0": (-128, 127)}
"""The formats, smallest first, and the codes that each holds: an element is scale * code."""


def pack_codes(format: str, codes: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.uint8]:
    """A matrix in a format of CODE_RANGES, as it would lie in a file: uint8 [bytes].

    codes: int8 [rows, K], K a multiple of 32, in the format's range. scales: float16 [rows, K / 32], one for each group.
    """
    low, high = CODE_RANGES[format]
    assert codes.size == 0 or (low <= codes.min() and codes.max() <= high), f"codes outside of {format}"
    groups = codes.reshape(-1, GROUP_SIZE)
    scale_bytes = np.ascontiguousarray(scales, "<f2").reshape(-1, 1).view(np.uint8)
    if format == "Q8_0":
        return np.hstack([scale_bytes, groups.view(np.uint8)]).reshape(-1)
    stored = (groups - np.int8(low)).astype(np.uint8)
    half = GROUP_SIZE // 2
    nibbles = (stored[:, :half] & 15) | (stored[:, half:] & 15) << np.uint8(4)
    if format == "Q4_0":
        return np.hstack([scale_bytes, nibbles]).reshape(-1)
    high_bits = np.packbits(stored >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([scale_bytes, high_bits, nibbles]).reshape(-1)
