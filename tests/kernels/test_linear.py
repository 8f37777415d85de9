"""Linear kernels: every format on every usable instruction set, against numpy and against scalar."""

import numpy as np
import pytest

from hotloop import _native
from hotloop.quant.formats import WEIGHT_FORMATS
from kernels.linear_cases import (
    F16_OFFSETS,
    FORMATS,
    INTEGER_FORMATS,
    Weights,
    assert_same_bits,
    put_exponents,
    put_f16,
    random_activations,
    random_weights,
    reference_f32,
    reference_int8,
)

BATCHES = (*range(1, 10), 16, 31, 33, 64)


def minimal_cols(format: str) -> int:
    return max(32, WEIGHT_FORMATS[format].superblock_size)


def shapes(format: str) -> list[tuple[int, int]]:
    """(rows, cols): one row, odd counts, counts around the tiles' lockstep; short and long K."""
    step = minimal_cols(format)
    return [
        (1, step),
        (7, 3 * step),
        (8, 8 * 32),
        (9, 2 * step),
        (33, 576 // step * step or step),
        (70, 512),
        (11, 1536),
        (3, 18944),
    ]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.mark.parametrize("format", FORMATS)
def test_matches_numpy(isa: str, format: str, rng: np.random.Generator) -> None:
    for rows, cols in shapes(format):
        weights = random_weights(format, rows, cols, rng)
        x = random_activations(3, cols, rng)
        reference = reference_int8 if format in INTEGER_FORMATS else reference_f32
        expected, tolerance = reference(weights, x)
        error = np.abs(weights.linear(isa, x) - expected)
        assert (error <= tolerance).all(), f"{rows} x {cols}: {(error / tolerance).max()} of the tolerance"


@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_f32_activations_match_numpy(isa: str, format: str, rng: np.random.Generator) -> None:
    for rows, cols in shapes(format)[:6]:
        weights = random_weights(format, rows, cols, rng)
        x = random_activations(5, cols, rng)
        expected, tolerance = reference_f32(weights, x)
        error = np.abs(weights.linear(isa, x, "f32") - expected)
        assert (error <= tolerance).all(), f"{rows} x {cols}: {(error / tolerance).max()} of the tolerance"


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("format", FORMATS)
def test_same_bits_as_scalar_for_every_batch(
    isa: str, activations: str, format: str, rng: np.random.Generator
) -> None:
    for rows, cols in [(43, 2 * minimal_cols(format)), (8, 1280), (5, minimal_cols(format))]:
        weights = random_weights(format, rows, cols, rng)
        x = random_activations(max(BATCHES), cols, rng)
        alone = np.concatenate([weights.linear("scalar", x[t : t + 1], activations) for t in range(len(x))])
        for tokens in BATCHES:
            assert_same_bits(weights.linear(isa, x[:tokens], activations), alone[:tokens])


@pytest.mark.parametrize("format", FORMATS)
def test_same_bits_for_every_range(isa: str, format: str, rng: np.random.Generator) -> None:
    cols = 2 * minimal_cols(format)
    weights = random_weights(format, 8 * 13, cols, rng)
    x = random_activations(11, cols, rng)
    whole = weights.linear("scalar", x)
    for row_blocks in [(0, 1), (0, 4), (1, 6), (3, 13), (5, 12), (12, 13)]:
        for tokens in [(0, 1), (10, 11), (1, 3), (2, 9), (0, 11)]:
            part = weights.linear(isa, x, row_blocks=row_blocks, tokens=tokens)
            assert_same_bits(part, whole[slice(*tokens), 8 * row_blocks[0] : 8 * row_blocks[1]])


@pytest.mark.parametrize("format", FORMATS)
def test_long_rows_have_the_same_bits(isa: str, format: str, rng: np.random.Generator) -> None:
    for cols in (8960, 18944):
        weights = random_weights(format, 9, cols, rng)
        x = random_activations(5, cols, rng)
        assert_same_bits(weights.linear(isa, x), weights.linear("scalar", x))


# Where a superblock keeps the scales and minimums of its groups.
SCALE_BYTES = {"Q2_K": (0, 16), "Q3_K": (96, 108), "Q4_K": (4, 16), "Q5_K": (4, 16), "Q6_K": (192, 208), "IQ4_XS": (2, 8)}


def saturated(format: str, code_byte: int, scale_byte: int, cols: int) -> Weights:
    """All code bytes equal (0xff: every code at its largest; 0x80: every i8 -128), scales 1."""
    weight_format = WEIGHT_FORMATS[format]
    source = np.full(
        (8 * cols // weight_format.superblock_size, weight_format.superblock_bytes), code_byte, np.uint8
    )
    first, last = SCALE_BYTES.get(format, (0, 0))
    source[:, first:last] = scale_byte
    for offset in F16_OFFSETS[format]:
        put_f16(source, offset, 1.0)
    if format == "MXFP4":
        put_exponents(source, 1.0)
    return Weights(format, 8, cols, source.reshape(-1))


@pytest.mark.parametrize("scale_byte", [0x80, 0x7F, 0xFF, 0x00])
@pytest.mark.parametrize("code_byte", [0xFF, 0x80, 0x7F, 0x00, 0x81])
@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_extreme_codes_do_not_saturate(isa: str, format: str, code_byte: int, scale_byte: int) -> None:
    weights = saturated(format, code_byte, scale_byte, 512)
    alternating = np.where(np.arange(512) % 2, -127.0, 127.0)
    x = np.stack(
        [
            np.full(512, 127.0),
            np.full(512, -127.0),
            alternating,
            np.where(np.arange(512) % 32 < 16, 127.0, -127.0),
        ]
    )
    x = x.astype(np.float32)
    expected, tolerance = reference_int8(weights, x)
    actual = weights.linear(isa, x)
    assert (np.abs(actual - expected) <= tolerance).all()
    if format not in SCALE_BYTES and format not in ("Q4_1", "Q5_1"):
        # With scales 1 and no minimums all sums are integers below 2^24: exact.
        np.testing.assert_array_equal(actual, expected)
    else:
        assert_same_bits(actual, weights.linear("scalar", x))


@pytest.mark.parametrize(
    "scales", [(0.0, 0.0), (5.9e-8, 6.1e-5), (-6e-8, 6e-8), (-65504.0, 65504.0), (-1.0, 0.0)]
)
@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_zero_subnormal_huge_and_negative_scales(
    isa: str, format: str, scales: tuple[float, float], rng: np.random.Generator
) -> None:
    weights = random_weights(format, 16, 512, rng, scales)
    for magnitude in (1.0, 1e-36, 1e24):
        x = random_activations(3, 512, rng) * np.float32(magnitude)
        expected, tolerance = reference_int8(weights, x)
        actual = weights.linear(isa, x)
        assert_same_bits(actual, weights.linear("scalar", x))
        assert (np.abs(actual - expected) <= tolerance).all()
        if scales == (0.0, 0.0) and format != "MXFP4":
            assert not actual.any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", FORMATS)
def test_poisoned_token_is_visible_and_alone(
    isa: str, format: str, poison: float, rng: np.random.Generator
) -> None:
    cols = 2 * minimal_cols(format)
    weights = random_weights(format, 20, cols, rng)
    x = random_activations(7, cols, rng)
    clean = weights.linear(isa, x)
    x[2, cols - 5] = poison
    x[6, 0] = poison
    actual = weights.linear(isa, x)
    for t in range(7):
        if t in (2, 6):
            assert not np.isfinite(actual[t]).any()
        else:
            assert_same_bits(actual[t], clean[t])
    assert_same_bits(actual, weights.linear("scalar", x))


@pytest.mark.parametrize("format", [format for format in INTEGER_FORMATS if F16_OFFSETS[format]])
def test_infinite_weight_scale_stays_in_its_row(isa: str, format: str, rng: np.random.Generator) -> None:
    cols = minimal_cols(format)
    weights = random_weights(format, 16, cols, rng)
    clean = weights.linear(isa, x := random_activations(4, cols, rng))
    put_f16(weights.source.reshape(16, -1)[5:6], F16_OFFSETS[format][0], np.inf)
    actual = weights.linear(isa, x)
    assert not np.isfinite(actual[:, 5]).any()
    others = np.arange(16) != 5
    assert_same_bits(actual[:, others], clean[:, others])


def test_arguments_are_checked(isa: str) -> None:
    packed = np.zeros(144, np.uint8)
    x = np.zeros((1, 32), np.float32)
    with pytest.raises(ValueError, match="Q9_9"):
        _native.linear(isa, "Q9_9", packed, 8, 32, x)
    with pytest.raises(ValueError, match="number of bytes"):
        _native.linear(isa, "Q4_0", packed, 9, 32, x)
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.linear(isa, "Q4_0", packed, 8, 33, x)
    with pytest.raises(ValueError, match=r"\[tokens, cols\]"):
        _native.linear(isa, "Q4_0", packed, 8, 32, np.zeros((1, 64), np.float32))
    with pytest.raises(ValueError, match="row_blocks"):
        _native.linear(isa, "Q4_0", packed, 8, 32, x, row_blocks=(0, 2))
    with pytest.raises(ValueError, match="usable"):
        _native.linear("avx9", "Q4_0", packed, 8, 32, x)
