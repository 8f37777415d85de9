"""Comparison of float arrays to the bit; a NaN equals any NaN (which one is not part of the promise)."""

import numpy as np
from numpy.typing import NDArray


def assert_same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Both float32, same shape; fails on the first element that differs in any bit."""
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
    if not same.all():
        at = np.unravel_index(int(np.argmin(same)), same.shape)
        differ = f"{(~same).sum()} of {same.size} differ"
        raise AssertionError(f"{differ}, first at {at}: {actual[at]!r} != {expected[at]!r}")


def ulp_error(actual: NDArray[np.float32], exact: NDArray[np.float64]) -> float:
    """Largest |actual - exact| in float32 units of the last place of exact, over its finite values."""
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    ulp = np.maximum(np.spacing(np.abs(rounded[finite])).astype(np.float64), 2.0**-149)
    return float((np.abs(actual[finite].astype(np.float64) - exact[finite]) / ulp).max())
