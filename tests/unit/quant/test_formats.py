"""The weight formats against an independent implementation (the `gguf` package), bit for bit."""

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hotloop.quant.formats import (
    DEQUANTIZABLE_FORMATS,
    FORMATS_BY_TYPE_ID,
    QUANTIZABLE_FORMATS,
    WEIGHT_FORMATS,
    WeightFormat,
    dequantize,
    quantize,
    unpack,
)

# Where the f16 scale fields of a superblock start.
SCALE_FIELDS: dict[str, list[int]] = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
CODED_FORMATS = list(SCALE_FIELDS)
FORMATS_WITH_MINIMUMS = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
PACKED_FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
ROUNDED_FORMATS = ["F16", "BF16", *PACKED_FORMATS]  # as the gguf package does; it has no K-quants
K_QUANTS = ["Q4_K", "Q5_K", "Q6_K"]


def oracle_dequantize(name: str, superblocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(superblocks, GGMLQuantizationType[name])


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits (so also the sign of a zero), except that any NaN equals any NaN."""
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    same = actual.view(np.uint32) == expected.view(np.uint32)
    assert (same | np.isnan(actual)).all()


def random_superblocks(name: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, WEIGHT_FORMATS[name].superblock_bytes), np.uint8)


def check(name: str, superblocks: np.ndarray) -> None:
    shape = (len(superblocks), WEIGHT_FORMATS[name].superblock_size)
    assert_same_bits(
        dequantize(name, superblocks.reshape(-1), shape), oracle_dequantize(name, superblocks).reshape(shape)
    )


def test_the_table_agrees_with_the_gguf_package():
    for type_id, (superblock_size, superblock_bytes) in GGML_QUANT_SIZES.items():
        known = FORMATS_BY_TYPE_ID[type_id]
        if known.name == "Q8_1":
            superblock_bytes = 36  # the package counts f32 scales, ggml has stored f16 ones since 2023
        assert known.name == type_id.name
        assert (known.superblock_size, known.superblock_bytes) == (superblock_size, superblock_bytes)


def test_the_table_is_consistent():
    assert len(FORMATS_BY_TYPE_ID) == len(WEIGHT_FORMATS)
    for name, known in WEIGHT_FORMATS.items():
        assert name == known.name
        assert known.superblock_size % known.group_size == 0
    assert WEIGHT_FORMATS["Q4_K"].bits_per_weight == 4.5
    assert WEIGHT_FORMATS["Q6_K"].bits_per_weight == 6.5625
    assert WEIGHT_FORMATS["F16"].bits_per_weight == 16


def test_sizes():
    q4_k = WEIGHT_FORMATS["Q4_K"]
    assert q4_k.tensor_bytes((10, 512)) == 10 * 2 * 144
    assert q4_k.tensor_bytes((256,)) == 144
    with pytest.raises(ValueError, match=r"288 elements is not a multiple of 256.*Q4_K"):
        q4_k.tensor_bytes((10, 288))


@pytest.mark.parametrize("name", DEQUANTIZABLE_FORMATS)
def test_random_bytes(name: str):
    check(name, random_superblocks(name, 2000, seed=1))


@pytest.mark.parametrize("name", CODED_FORMATS)
def test_every_scale_pattern(name: str):
    patterns = np.arange(1 << 16, dtype="<u2")
    for field in SCALE_FIELDS[name]:
        superblocks = random_superblocks(name, len(patterns), seed=field)
        superblocks[:, field : field + 2] = patterns.view(np.uint8).reshape(-1, 2)
        for chunk in np.array_split(superblocks, 8):
            check(name, chunk)


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_float(name: str):
    check(name, np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2))


@pytest.mark.parametrize("name", CODED_FORMATS)
def test_every_byte_value_at_every_place(name: str):
    # Superblock b holds the byte b + 37 i at place i: every place takes every value.
    num_bytes = WEIGHT_FORMATS[name].superblock_bytes
    superblocks = (np.arange(256)[:, None] + 37 * np.arange(num_bytes)).astype(np.uint8)
    one = np.array([1.0], "<f2").view(np.uint8)
    for field in SCALE_FIELDS[name]:
        superblocks[:, field : field + 2] = one
    check(name, superblocks)


@given(data=st.data(), name=st.sampled_from(DEQUANTIZABLE_FORMATS))
def test_any_bytes(data: st.DataObject, name: str):
    num_bytes = WEIGHT_FORMATS[name].superblock_bytes
    check(name, data.draw(hnp.arrays(np.uint8, (2, num_bytes))))


@pytest.mark.parametrize("name", CODED_FORMATS)
def test_unpacked_groups_define_the_elements(name: str):
    known = WEIGHT_FORMATS[name]
    superblocks = random_superblocks(name, 6, seed=3)
    for field in SCALE_FIELDS[name]:
        superblocks[:, field : field + 2] = np.array([0.37], "<f2").view(np.uint8)
    shape = (3, 2 * known.superblock_size)
    groups = unpack(name, superblocks.reshape(-1), shape)
    assert groups.codes.shape == shape
    assert groups.codes.dtype == np.int8
    assert groups.scales.shape == (3, shape[1] // known.group_size)
    elements = groups.codes.astype(np.float32) * np.repeat(groups.scales, known.group_size, axis=1)
    if groups.minimums is not None:
        elements += np.repeat(groups.minimums, known.group_size, axis=1)
    assert_same_bits(elements, dequantize(name, superblocks.reshape(-1), shape))
    assert (groups.minimums is not None) == (name in FORMATS_WITH_MINIMUMS)


def test_a_tensor_larger_than_a_chunk_keeps_its_order():
    known = WEIGHT_FORMATS["Q8_0"]
    shape = (3, 1 << 18)
    superblocks = random_superblocks("Q8_0", 3 * (shape[1] // known.superblock_size), seed=4)
    whole = dequantize("Q8_0", superblocks.reshape(-1), shape)
    rows = superblocks.reshape(3, -1)
    for row in range(3):
        assert_same_bits(whole[row], dequantize("Q8_0", rows[row], shape[1:]))


def weights_like(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(np.float32)
    values[0] = 0
    values[1] = -0.0
    values[2] = 1e-7 * values[2]  # f16 scales round to subnormals or zero
    values[3] = 1e-40  # subnormal
    values[4] = 3000 * values[4]
    values[5, ::2] = -values[5, 1::2]  # ties for the largest magnitude
    values[6] = np.abs(values[6])
    values[7] = np.round(values[7] * 8) / 16  # many halves to round
    values[8] = 0.25
    return values


@pytest.mark.parametrize("name", ROUNDED_FORMATS)
def test_quantize_equals_the_gguf_package(name: str):
    values = weights_like(5, (400, 64))
    if name not in ("F16", "BF16"):
        values[3] = 0  # see test_tiny_weights_become_zero
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8).reshape(-1)
    np.testing.assert_array_equal(quantize(name, values), expected)


@pytest.mark.parametrize("name", [name for name in ROUNDED_FORMATS if name not in ("F16", "BF16")])
@given(data=st.data())
def test_quantize_equals_the_gguf_package_on_any_finite_weights(name: str, data: st.DataObject):
    elements = st.floats(-6e4, 6e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)
    values = data.draw(hnp.arrays(np.float32, (2, 32), elements=elements)) + np.float32(0)  # no -0: see codecs._minimum
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(values, GGMLQuantizationType[name]).reshape(-1)
    np.testing.assert_array_equal(quantize(name, values), expected)


def test_every_kind_of_float_to_bf16():
    rng = np.random.default_rng(6)
    bits = np.concatenate(
        [
            rng.integers(0, 1 << 32, 100_000, np.uint32),
            np.array(
                [0x7F800000, 0xFF800000, 0x7F800001, 0xFFBFFFFF, 0x7F7FFFFF, 0x3F808000, 0x3F818000],
                np.uint32,
            ),
        ]
    )
    values = bits.view(np.float32)
    expected = gguf.quants.quantize(values[None], GGMLQuantizationType.BF16).reshape(-1)
    np.testing.assert_array_equal(quantize("BF16", values), expected)


@pytest.mark.parametrize("name", PACKED_FORMATS + K_QUANTS)
def test_tiny_weights_become_zero(name: str):
    values = np.full((1, 256), 1e-42, np.float32)
    values[0, ::2] *= -1
    np.testing.assert_array_equal(dequantize(name, quantize(name, values), (1, 256)), np.zeros((1, 256)))


@pytest.mark.parametrize("name", QUANTIZABLE_FORMATS)
def test_round_trip_is_close(name: str):
    values = np.random.default_rng(7).uniform(-1, 1, (8, 256)).astype(np.float32)
    # Half a step, or one where the extreme opposite to the largest is clamped; the f16 scale on top.
    error = {
        "F32": 0,
        "F16": 2**-11,
        "BF16": 2**-8,
        "Q4_0": 1.01 / 8,
        "Q4_1": 1.01 / 15,
        "Q5_0": 1.01 / 16,
        "Q5_1": 1.01 / 31,
        "Q8_0": 0.57 / 127,
        "Q4_K": 1.5 / 15,  # a grid may be narrower than the weights: clipping few serves all
        "Q5_K": 1.5 / 31,
        "Q6_K": 1.1 / 32,
        "MXFP4": 1 / 4,  # values 1/2 * (.. 3, 4, 6), where 6 may stand for anything below 8
    }
    restored = dequantize(name, quantize(name, values), values.shape)
    assert np.abs(restored - values).max() <= error[name]


@pytest.mark.parametrize("name", PACKED_FORMATS + K_QUANTS)
@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "NaN or inf"), (np.inf, "NaN or inf"), (3e38, "too large")]
)
def test_weights_that_no_scale_can_hold_are_refused(name: str, value: float, message: str):
    values = np.ones((1, 256), np.float32)
    values[0, 3] = value
    values[0, 4] = -value
    if name == "MXFP4" and np.isfinite(value):
        assert quantize(name, values)[0] == 127 + 127 - 2  # its exponent reaches as far as float32's
        return
    with pytest.raises(ValueError, match=message):
        quantize(name, values)


def test_wrong_use_is_refused():
    data = np.zeros(18, np.uint8)
    with pytest.raises(ValueError, match="'Q9_9' cannot be dequantized; known: F32, F16"):
        dequantize("Q9_9", data, (1, 32))
    with pytest.raises(ValueError, match=r"shape \(2, 32\) is 36 bytes, not 18 of uint8"):
        dequantize("Q4_0", data, (2, 32))
    with pytest.raises(ValueError, match="not 18 of int8"):
        dequantize("Q4_0", data.view(np.int8), (1, 32))
    with pytest.raises(ValueError, match="not a multiple of 32"):
        quantize("Q4_0", np.zeros((2, 48), np.float32))
    with pytest.raises(ValueError, match="'Q2_K'; known"):
        quantize("Q2_K", np.zeros((2, 256), np.float32))
    with pytest.raises(ValueError, match="'F16'; known"):
        unpack("F16", np.zeros(64, np.uint8), (1, 32))


def test_a_format_is_plain_data():
    assert WeightFormat("X", 1, 2, 4, 3) == WeightFormat("X", 1, 2, 4, 3)
    with pytest.raises(AttributeError):
        WEIGHT_FORMATS["F32"].name = "F64"  # type: ignore[misc]
