"""The definition of int8 activation quantization against its own description, one element at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hotloop.quant.activations import quantize_activations

F32 = np.float32
ANY_FLOAT = st.floats(width=32)


def quantize_one_group(group: np.ndarray) -> tuple[list[int], np.float32]:
    """The description, in scalar operations."""
    if not np.isfinite(group).all():
        return [0] * 32, F32(np.nan)
    amax = max(F32(abs(value)) for value in group)
    if amax < 2.0**-119:
        return [0] * 32, F32(0)
    inverse = F32(F32(127) / amax)
    codes = [int(max(-127, min(127, round(float(F32(value * inverse)))))) for value in group]
    return codes, F32(amax / F32(127))


def check(x: np.ndarray) -> None:
    codes, scales = quantize_activations(x)
    assert codes.dtype == np.int8
    assert scales.dtype == np.float32
    assert codes.shape == x.shape
    assert scales.shape == (*x.shape[:-1], x.shape[-1] // 32)
    for group, group_codes, scale in zip(
        x.reshape(-1, 32), codes.reshape(-1, 32), scales.reshape(-1), strict=True
    ):
        expected_codes, expected_scale = quantize_one_group(group)
        assert group_codes.tolist() == expected_codes
        np.testing.assert_equal(scale, expected_scale)


@given(hnp.arrays(np.float32, (2, 64), elements=ANY_FLOAT))
def test_any_floats(x: np.ndarray):
    check(x)


@given(st.floats(2.0**-126, 2.0**127, width=32), st.integers(0, 2**32 - 1))
def test_any_magnitude(magnitude: float, seed: int):
    rng = np.random.default_rng(seed)
    check((rng.uniform(-1, 1, (1, 32)) * magnitude).astype(np.float32))


def test_random_activations_lose_at_most_half_a_step():
    x = np.random.default_rng(1).standard_normal((5, 7, 96)).astype(np.float32)
    check(x)
    codes, scales = quantize_activations(x)
    step = np.repeat(scales, 32, axis=-1)
    assert (np.abs(codes * step - x) <= 0.5001 * step).all()


def test_halves_go_to_even():
    x = np.zeros(32, np.float32)
    x[:6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    codes, scales = quantize_activations(x)
    assert codes[:6].tolist() == [127, 0, 2, 2, 0, -2]
    assert scales.tolist() == [1.0]


def test_extremes_stay_in_range():
    for amax in np.random.default_rng(2).integers(0x04000000, 0x7F800000, 20_000, np.uint32).view(np.float32):
        x = np.full(32, amax, np.float32)
        x[1::2] = -amax
        codes, scales = quantize_activations(x)
        assert set(codes.tolist()) == {127, -127}
        assert np.isfinite(scales).all()


@pytest.mark.parametrize(
    "tiny", [0.0, -0.0, 1e-45, 1e-40, 2.0**-126, float(np.nextafter(F32(2.0**-119), F32(0)))]
)
def test_dust_is_zero(tiny: float):
    codes, scales = quantize_activations(np.full((1, 32), tiny, np.float32))
    assert not codes.any()
    assert scales.tolist() == [[0.0]]
    assert not np.signbit(scales).any()


def test_the_smallest_group_that_counts_has_a_normal_scale():
    codes, scales = quantize_activations(np.full((1, 32), 2.0**-119, np.float32))
    assert (codes == 127).all()
    assert scales[0, 0] >= np.finfo(np.float32).smallest_normal


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [32, 45, 63])
def test_a_bad_value_poisons_its_group_only(bad: float, place: int):
    x = np.ones((1, 96), np.float32)
    x[0, place] = bad
    codes, scales = quantize_activations(x)
    assert np.isnan(scales[0]).tolist() == [False, True, False]
    assert codes.reshape(3, 32).any(axis=1).tolist() == [True, False, True]


def test_a_strided_input_is_read_in_order():
    x = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)
    for actual, expected in zip(quantize_activations(x.T), quantize_activations(x.T.copy()), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="float32, not float64"):
        quantize_activations(np.zeros(32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(2, 48\) is not a multiple of 32"):
        quantize_activations(np.zeros((2, 48), np.float32))
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_activations(np.float32(1).reshape(()))
