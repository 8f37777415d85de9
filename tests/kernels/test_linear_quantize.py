"""Activation quantization and repacking: bit for bit the numpy definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from hotloop.quant.activations import quantize_activations
from hotloop.quant.formats import WEIGHT_FORMATS
from kernels.linear_cases import FORMATS, Weights, assert_same_bits, bits, random_weights


def check_rows(isa: str, x: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        codes, scales = quantize_activations(x)
    q, scale, scaled_sum, sum16 = _native.quantize_rows(isa, x)
    np.testing.assert_array_equal(q, codes)
    assert_same_bits(scale, scales)
    wide = codes.astype(np.int32)
    np.testing.assert_array_equal(sum16, wide.reshape(len(x), -1, 16).sum(axis=-1))
    group_sums = wide.reshape(len(x), -1, 32).sum(axis=-1).astype(np.float32)
    with np.errstate(over="ignore"):
        assert_same_bits(scaled_sum, scales * group_sums)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_quantize_any_floats(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32))
    exponent = data.draw(
        st.sampled_from([0xFF, 0x7F])
    )  # 0x7f: exponent's top bit cleared, so NaN and infinity are rare
    x = (
        (np.array(words, np.uint32) & np.uint32((exponent << 23) | 0x807FFFFF))
        .view(np.float32)
        .reshape(1, 32)
    )
    for isa in _native.usable_isas():
        check_rows(isa, x)


def test_quantize_many_magnitudes_and_ties(isa: str) -> None:
    rng = np.random.default_rng(7)
    exponents = np.arange(-149, 128, dtype=np.float64)
    x = (rng.uniform(-1, 1, (len(exponents), 64)) * np.exp2(exponents)[:, None]).astype(np.float32)
    check_rows(isa, x)
    halves = (np.arange(-127, 129)[:256] - 0.5).astype(np.float32).reshape(-1, 32)
    halves[:, 0] = 127.0  # scale 1: every other code is a tie
    check_rows(isa, halves)


@pytest.mark.parametrize(
    "value", [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 2.0**-119, 2.0**-120, 3.4e38, -3.4e38]
)
def test_quantize_special_values(isa: str, value: float) -> None:
    x = np.zeros((3, 96), np.float32)
    x[1] = value
    x[2] = 1.0
    x[2, [5, 63]] = value
    check_rows(isa, x)


@pytest.mark.parametrize("format", FORMATS)
def test_repacked_matrix_dequantizes_to_the_definition(isa: str, format: str) -> None:
    rng = np.random.default_rng(11)
    superblock = max(32, WEIGHT_FORMATS[format].superblock_size)
    for rows, cols in [(1, superblock), (8, 3 * superblock), (21, 2 * superblock)]:
        weights = random_weights(format, rows, cols, rng)
        packed = weights.packed
        assert len(packed) == (rows + 7) // 8 * 8 * WEIGHT_FORMATS[format].row_bytes(cols)
        assert packed.ctypes.data % 64 == 0
        assert_same_bits(_native.dequantize_rows(isa, format, packed, rows, cols), weights.dequantized())


@pytest.mark.parametrize("format", ["F16", "BF16"])
def test_all_half_codes_widen_exactly(isa: str, format: str) -> None:
    source = np.arange(65536, dtype=np.uint16).view(np.uint8)
    weights = Weights(format, 64, 1024, source)
    actual = _native.dequantize_rows(isa, format, weights.packed, 64, 1024)
    assert_same_bits(actual, weights.dequantized())
    with np.errstate(invalid="ignore"):
        one_hot = weights.linear(isa, np.eye(1024, dtype=np.float32)[:3])
    finite = np.isfinite(weights.dequantized()).all(axis=1)
    np.testing.assert_array_equal(
        bits(one_hot[:, finite] + 0.0), bits(weights.dequantized()[finite, :3].T + 0.0)
    )


@pytest.mark.parametrize("format", ["Q4_0", "Q8_0"])
def test_every_scale_code(isa: str, format: str) -> None:
    weight_format = WEIGHT_FORMATS[format]
    source = np.zeros((65536, weight_format.superblock_bytes), np.uint8)
    source[:, 0:2] = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    source[:, 2:] = 0x93
    weights = Weights(format, 64, 32 * 1024, source.reshape(-1))
    actual = _native.dequantize_rows(isa, format, weights.packed, 64, 32 * 1024)
    assert_same_bits(actual, weights.dequantized())


def test_padding_rows_are_zero_bytes() -> None:
    rng = np.random.default_rng(3)
    weights = random_weights("Q8_0", 3, 64, rng)
    groups = weights.packed.reshape(-1, 272)
    assert not groups[:, 6:16].any()
    assert not groups[:, 16:].reshape(-1, 8, 8, 4)[:, :, 3:].any()


def test_documented_place_of_a_nibble() -> None:
    """docs/weight-layouts.md: k = 4j + i (+ 16) of row r is the low (high) nibble of byte 32j + 4r + i."""
    source = np.zeros((8, 18), np.uint8)
    source[:, 0:2] = np.float16(1).reshape(1).view(np.uint8)
    row, k = 5, 4 * 2 + 3
    source[row, 2 + k] = 0xA3
    packed = _native.repack("Q4_0", source.reshape(-1), 8, 32)
    expected = np.zeros(128, np.uint8)
    expected[32 * 2 + 4 * row + 3] = 0xA3
    np.testing.assert_array_equal(packed[16:], expected)
