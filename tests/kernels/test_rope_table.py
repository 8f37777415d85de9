"""Rope tables against an exact evaluation: correctly rounded cosines and sines, whatever the position."""

import numpy as np
import pytest

from hotloop import _native


def _table(positions: list[int], inv_freq: list[float], factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = _native.rope_cos_sin(np.array(positions, np.int32), np.array(inv_freq, np.float64), factor)
    return np.asarray(cos), np.asarray(sin)


@pytest.mark.parametrize("base", [1e4, 1e6])
def test_equal_to_rounded_float64_functions(base: float) -> None:
    positions = [0, 1, 2, 3, 7, 100, 2047, 8191, 40_961, 131_071, 1_048_575]
    inv_freq = [base ** (-2 * k / 64) for k in range(32)]
    cos, sin = _table(positions, inv_freq)
    angle = np.array(positions, np.float64)[:, None] * np.array(inv_freq)
    np.testing.assert_array_equal(cos, np.cos(angle).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angle).astype(np.float32))


def test_angles_next_to_multiples_of_half_pi() -> None:
    """Where the reduction cancels most: position 1 times the double nearest to n pi / 2."""
    inv_freq = [float(n * np.pi / 2) for n in range(1, 3000)]
    cos, sin = _table([1], inv_freq)
    np.testing.assert_allclose(cos[0], np.cos(inv_freq), rtol=2.0**-24, atol=0)
    np.testing.assert_allclose(sin[0], np.sin(inv_freq), rtol=2.0**-24, atol=0)


def test_large_angles_keep_their_absolute_accuracy() -> None:
    positions = [2**21 + 1, 2**23 - 5, 2**24]
    cos, sin = _table(positions, [1.0, 0.77])
    angle = np.array(positions, np.float64)[:, None] * np.array([1.0, 0.77])
    np.testing.assert_allclose(cos, np.cos(angle), atol=2.0**-24)
    np.testing.assert_allclose(sin, np.sin(angle), atol=2.0**-24)


def test_attention_factor_multiplies_the_rounded_values() -> None:
    cos, sin = _table([5], [1.0, 0.1])
    scaled_cos, scaled_sin = _table([5], [1.0, 0.1], 1.2079441541679836)
    factor = np.float32(1.2079441541679836)
    np.testing.assert_array_equal(scaled_cos, cos * factor)
    np.testing.assert_array_equal(scaled_sin, sin * factor)
