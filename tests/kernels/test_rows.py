"""Norm, rope, KV store, gated activations and elementwise rows against numpy and the scalar set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hotloop import _native
from kernels.bitwise import assert_same_bits

F32 = NDArray[np.float32]
SIZES = [1, 15, 16, 17, 64, 80, 576, 1000]
EXTREME = np.array([0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 1.0], np.float32)


def _random(n: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


def _lane_sum(products: F32) -> np.float32:
    """The project's reduction tree over 16 lanes."""
    width = 8
    while width:
        products = products[:width] + products[width : 2 * width]
        width //= 2
    return np.float32(products[0])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_within_rounding_of_float64(isa: str, n: int, with_residual: bool) -> None:
    x, gain, residual = _random(n), _random(n, 1), _random(n, 2)
    actual = _native.rms_norm(isa, x, gain, residual if with_residual else None, 1e-6)
    x64 = x.astype(np.float64)
    normed = x64 / np.sqrt((x64**2).mean() + 1e-6) * gain
    expected = normed + residual if with_residual else normed
    # Sum: at most n / 16 + 4 additions of positive terms, halved by the root; 6 more roundings.
    tolerance = ((n / 16 + 4) / 2 + 6) * 2.0**-24 * np.abs(normed) + 2.0**-24 * np.abs(expected)
    assert (np.abs(actual - expected) <= tolerance + 1e-37).all()
    assert_same_bits(actual, _native.rms_norm("scalar", x, gain, residual if with_residual else None, 1e-6))


def test_rms_norm_is_the_documented_order_of_operations(isa: str) -> None:
    """For 16 elements every fma adds to zero, so numpy can repeat the arithmetic to the bit."""
    x, gain = _random(16), _random(16, 1)
    mean = _lane_sum(x * x) / np.float32(16)
    inverse = np.float32(1) / np.sqrt(mean + np.float32(1e-5))
    assert_same_bits(_native.rms_norm(isa, x, gain, None, 1e-5), (x * inverse) * gain)


def test_a_nan_reaches_the_whole_norm(isa: str) -> None:
    x = _random(40)
    x[17] = np.nan
    assert np.isnan(_native.rms_norm(isa, x, _random(40, 1), None, 1e-6)).all()


@pytest.mark.parametrize("n", SIZES)
def test_layer_norm_within_rounding_of_float64(isa: str, n: int) -> None:
    x, gain, bias = _random(n) + np.float32(3), _random(n, 1), _random(n, 2)
    actual = _native.layer_norm(isa, x, gain, bias, 1e-5)
    x64 = x.astype(np.float64)
    centred = x64 - x64.mean()
    normed = centred / np.sqrt((centred**2).mean() + 1e-5) * gain
    # As the RMS norm, and what the rounded mean is off, of numbers as large as |x|.
    scale = np.abs(gain) / np.sqrt((centred**2).mean() + 1e-5) * np.abs(x64).max()
    rounding = (n / 16 + 4) * 2.0**-24
    tolerance = (rounding + 8 * 2.0**-24) * (np.abs(normed) + scale) + 2.0**-24 * np.abs(normed + bias)
    assert (np.abs(actual - (normed + bias)) <= tolerance).all()
    assert_same_bits(actual, _native.layer_norm("scalar", x, gain, bias, 1e-5))


def test_layer_norm_is_the_documented_order_of_operations(isa: str) -> None:
    """For 16 elements every lane holds one, so numpy can repeat the arithmetic to the bit."""
    x, gain, bias = _random(16), _random(16, 1), _random(16, 2)
    centred = x - _lane_sum(x) / np.float32(16)
    inverse = np.float32(1) / np.sqrt(_lane_sum(centred * centred) / np.float32(16) + np.float32(1e-5))
    assert_same_bits(_native.layer_norm(isa, x, gain, bias, 1e-5), (centred * inverse) * gain + bias)


def test_absent_elements_do_not_count_in_a_layer_norm(isa: str) -> None:
    """Five elements far from zero: were the vector's other eleven zeros, the deviation would be as large as the mean."""
    x = np.array([1000, 1001, 1002, 1003, 1004], np.float32)
    ones, zeros = np.ones(5, np.float32), np.zeros(5, np.float32)
    expected = np.array([-2, -1, 0, 1, 2]) / np.sqrt(2.0)
    np.testing.assert_allclose(_native.layer_norm(isa, x, ones, zeros, 0.0), expected, rtol=1e-6)


@pytest.mark.parametrize("style", list(_native.RopeStyle))
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(64, 64), (80, 80), (128, 64), (96, 96), (6, 6), (64, 34)])
def test_rope_to_the_bit(isa: str, style: _native.RopeStyle, head_dim: int, rot_dim: int) -> None:
    half = rot_dim // 2
    head, angle = _random(head_dim), np.linspace(0, 3, half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    pairs = (slice(0, rot_dim, 2), slice(1, rot_dim, 2))
    if style == _native.RopeStyle.half_split:
        pairs = (slice(0, half), slice(half, rot_dim))
    first, second = head[pairs[0]], head[pairs[1]]
    expected = head.copy()
    expected[pairs[0]] = first * cos - second * sin
    expected[pairs[1]] = second * cos + first * sin
    assert_same_bits(_native.rope(isa, head, cos, sin, style), expected)


def test_store_f16_of_every_half_and_its_neighbours(isa: str) -> None:
    """All 65,536 halves, the midpoints between them, the floats beside those: nearest even, as in numpy."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [halves, middle, *(np.nextafter(middle, np.float32(to)) for to in (np.inf, -np.inf)), EXTREME]
    )
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    actual = np.asarray(_native.store_f16(isa, x))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(actual[number], expected.view(np.uint16)[number])
    assert np.isnan(actual[~number].view(np.float16)).all()
    np.testing.assert_array_equal(actual, _native.store_f16("scalar", x))


def test_store_f16_quiets_signalling_nans_and_keeps_the_payload(isa: str) -> None:
    x = np.array([0x7F802000, 0xFF80A000, 0x7F800001], np.uint32).view(np.float32)
    x = np.concatenate([x, np.zeros(14, np.float32)])
    np.testing.assert_array_equal(np.asarray(_native.store_f16(isa, x))[:3], [0x7E01, 0xFE05, 0x7E00])


@pytest.mark.parametrize("n", SIZES)
def test_elementwise_rows_are_single_ieee_operations(isa: str, n: int) -> None:
    a, b = _random(n), _random(n, 1)
    assert_same_bits(_native.add(isa, a, b), a + b)
    assert_same_bits(_native.scale(isa, a, 0.1), a * np.float32(0.1))


@pytest.mark.parametrize("cap", [30.0, 50.0])
def test_softcap(isa: str, cap: float) -> None:
    x = np.linspace(-200, 200, 1001, dtype=np.float32)
    expected = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(_native.softcap(isa, x, cap), expected, rtol=4e-7)


@pytest.mark.parametrize("activation", list(_native.ActivationFunction))
def test_gated_multiplies_the_activation(isa: str, activation: _native.ActivationFunction) -> None:
    gate, up = _random(70), _random(70, 1)
    alone = _native.gated(isa, gate, np.ones_like(up), activation)
    assert_same_bits(_native.gated(isa, gate, up, activation), alone * up)


@pytest.mark.parametrize("activation", list(_native.ActivationFunction))
def test_activate_adds_the_bias_first(isa: str, activation: _native.ActivationFunction) -> None:
    x, bias = _random(70), _random(70, 1)
    ones = np.ones_like(x)
    assert_same_bits(_native.activate(isa, x, None, activation), _native.gated(isa, x, ones, activation))
    assert_same_bits(_native.activate(isa, x, bias, activation), _native.gated(isa, x + bias, ones, activation))


@settings(max_examples=60, deadline=None)
@given(x=hnp.arrays(np.float32, st.integers(1, 100), elements=st.floats(width=32)), data=st.data())
def test_every_instruction_set_computes_the_scalar_bits(x: F32, data: st.DataObject) -> None:
    """Any float32 values, infinities, NaNs and denormals included."""
    isa = data.draw(st.sampled_from(_native.usable_isas()))
    y = data.draw(hnp.arrays(np.float32, x.shape, elements=st.floats(width=32)))
    for activation in _native.ActivationFunction:
        assert_same_bits(_native.gated(isa, x, y, activation), _native.gated("scalar", x, y, activation))
        assert_same_bits(_native.activate(isa, x, y, activation), _native.activate("scalar", x, y, activation))
    assert_same_bits(_native.layer_norm(isa, x, y, y, 1e-6), _native.layer_norm("scalar", x, y, y, 1e-6))
    assert_same_bits(_native.rms_norm(isa, x, y, None, 1e-6), _native.rms_norm("scalar", x, y, None, 1e-6))
    assert_same_bits(_native.add(isa, x, y), _native.add("scalar", x, y))
    assert_same_bits(_native.softcap(isa, x, 7.0), _native.softcap("scalar", x, 7.0))
    half = len(x) // 2
    for style in _native.RopeStyle:
        arguments = (x, y[:half].copy(), y[half : 2 * half].copy(), style)
        assert_same_bits(_native.rope(isa, *arguments), _native.rope("scalar", *arguments))


def test_mismatched_sizes_are_refused(isa: str) -> None:
    with pytest.raises(ValueError, match="sizes differ"):
        _native.add(isa, _random(3), _random(4))
    with pytest.raises(ValueError, match="sizes differ"):
        _native.layer_norm(isa, _random(3), _random(3), _random(4), 1e-6)
    with pytest.raises(ValueError, match="sizes differ"):
        _native.activate(isa, _random(3), _random(4), _native.ActivationFunction.silu)
    with pytest.raises(ValueError, match="not usable on this machine"):
        _native.add("sse9", _random(3), _random(3))
