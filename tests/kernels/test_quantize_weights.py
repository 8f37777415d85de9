"""The native quantizers equal their numpy definitions bit for bit, whatever the weights, the source format and the team."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hotloop import _native
from hotloop.quant.formats import QUANTIZABLE_FORMATS, WEIGHT_FORMATS, dequantize, quantize

FORMATS = tuple(name for name in QUANTIZABLE_FORMATS if name != "MXFP4")
CODED_FORMATS = tuple(name for name in FORMATS if name not in ("F32", "F16", "BF16"))
LARGEST = 60000.0  # no scale overflows f16


def native(format: str, values: np.ndarray, source_format: str = "F32", threads: int = 2) -> np.ndarray:
    fault, out = native_fault(format, values, source_format, threads)
    assert fault == ("", 0)
    return out


def native_fault(
    format: str, values: np.ndarray, source_format: str = "F32", threads: int = 2
) -> tuple[tuple[str, int], np.ndarray]:
    out = np.empty(WEIGHT_FORMATS[format].tensor_bytes(values.shape), np.uint8)
    fault = _native.quantize_weights(
        _native.WeightFormat[format],
        _native.WeightFormat[source_format],
        quantize(source_format, values),
        out,
        _native.ThreadTeam(threads),
    )
    return fault, out


def nasty_weights(seed: int = 5) -> np.ndarray:
    """float32 [24, 512]: rows of every kind of trouble."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((24, 512)) * 0.02).astype(np.float32)
    x[0] = 0
    x[1] = -0.0
    x[2] *= 1e-6  # f16 scales round to subnormals or zero
    x[3] = 1e-40  # subnormal
    x[4] *= 1e6
    x[5, ::2] = -x[5, 1::2]  # ties for the largest magnitude
    x[6] = np.abs(x[6])
    x[7] = -np.abs(x[7])
    x[8] = 0.25
    x[9] = -0.25
    x[10] = np.round(x[10] * 200) / 16  # many halves to round
    x[11] = 0
    x[11, ::37] = 1
    x[12] = 10.0 ** rng.uniform(-38, 4, 512)
    x[13] = -(10.0 ** rng.uniform(-38, 4, 512))
    x[14] *= (10.0 ** rng.uniform(-10, 4, 512)).astype(np.float32)
    x[15] = 1e-25  # squares underflow
    x[16] = np.float32(2**-24)
    x[17, :-1] = 0
    x[18, ::2] = -0.0
    x[18, 1::2] = np.abs(x[18, 1::2]) * (np.arange(256) % 3)  # zeros of both signs, first either
    x[19] = np.abs(x[19])
    x[19, 5::32] = 0
    x[19, 6::32] = -0.0
    return np.clip(x, -LARGEST, LARGEST)


@pytest.mark.parametrize("format", FORMATS)
def test_nasty_weights(format: str) -> None:
    x = nasty_weights()
    np.testing.assert_array_equal(native(format, x), quantize(format, x))


@pytest.mark.parametrize("format", CODED_FORMATS)
def test_zeros_of_both_signs(format: str) -> None:
    x = np.where(np.random.default_rng(9).random((64, 512)) < 0.5, np.float32(-0.0), np.float32(0))
    np.testing.assert_array_equal(native(format, x), quantize(format, x))


@pytest.mark.parametrize("source_format", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("format", ["Q4_0", "Q4_K", "Q6_K", "F32", "BF16"])
def test_every_source_format(format: str, source_format: str) -> None:
    x = nasty_weights(6)
    stored = dequantize(source_format, quantize(source_format, x), x.shape)
    np.testing.assert_array_equal(native(format, x, source_format), quantize(format, stored))


@pytest.mark.parametrize("format", ["Q8_0", "Q5_K"])
def test_the_size_of_the_team_does_not_matter(format: str) -> None:
    x = (np.random.default_rng(7).standard_normal((300, 512)) * 0.02).astype(np.float32)  # several tiles
    expected = native(format, x, threads=1)
    np.testing.assert_array_equal(native(format, x, threads=3), expected)
    np.testing.assert_array_equal(expected, quantize(format, x))


@pytest.mark.parametrize("format", CODED_FORMATS)
@given(data=st.data())
@settings(max_examples=25)
def test_any_finite_weights(format: str, data: st.DataObject) -> None:
    elements = st.floats(-LARGEST, LARGEST, width=32)
    x = data.draw(hnp.arrays(np.float32, (1, 256), elements=elements, fill=st.just(np.float32(0.5))))
    np.testing.assert_array_equal(native(format, x, threads=1), quantize(format, x))


def test_the_same_bytes_on_every_machine() -> None:
    """Raw generator output is the same in every numpy, and all arithmetic is IEEE's."""
    words = np.random.PCG64(11).random_raw(4096)
    x = ((words >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1).reshape(8, 512)
    sums = {format: zlib.crc32(native(format, x).tobytes()) for format in ("Q4_0", "Q4_K", "Q5_K", "Q6_K")}
    assert sums == {"Q4_0": 3204129832, "Q4_K": 1642805215, "Q5_K": 619784780, "Q6_K": 598161853}


# Root mean square error, relative to the weights, of normal weights. Half a step at most; the values are those reached.
ERRORS = {
    "Q4_0": 0.086, "Q4_1": 0.079, "Q5_0": 0.044, "Q5_1": 0.039, "Q8_0": 0.0056, "Q4_K": 0.0715, "Q5_K": 0.0353, "Q6_K": 0.018,
}  # fmt: skip


@pytest.mark.parametrize("format", CODED_FORMATS)
def test_errors_are_small(format: str) -> None:
    x = (np.random.default_rng(8).standard_normal((64, 512)) * 0.02).astype(np.float32)
    error = dequantize(format, native(format, x), x.shape) - x
    relative = np.sqrt(np.mean(error.astype(np.float64) ** 2)) / 0.02
    assert 0.8 * ERRORS[format] < relative < ERRORS[format]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_weight_that_is_not_finite_is_named(format: str, value: float) -> None:
    x = np.zeros((100, 512), np.float32)
    x[40, 300] = x[70, 1] = value
    assert native_fault(format, x)[0] == ("not finite", 40 * 512 + 300)


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in ("F32", "BF16")])
def test_weights_that_no_scale_can_hold_are_named(format: str) -> None:
    x = np.zeros((100, 512), np.float32)
    x[41, 256:258] = [-3e38, 3e38]
    assert native_fault(format, x)[0] == ("too large", 41 * 512 + 256)
    if format in CODED_FORMATS:
        with pytest.raises(ValueError, match="too large"):
            quantize(format, x)


def test_the_largest_finite_float_is_infinite_in_bf16() -> None:
    x = np.full((1, 32), np.finfo(np.float32).max)
    assert native_fault("BF16", x)[0] == ("too large", 0)


def test_wrong_use_is_refused() -> None:
    team, kind = _native.ThreadTeam(1), _native.WeightFormat
    x, out = np.zeros(1024, np.uint8), np.zeros(144, np.uint8)
    assert _native.quantize_weights(kind.Q4_K, kind.F32, x, out, team) == ("", 0)
    for format, source, src, dst, message in (
        (kind.Q2_K, kind.F32, x, out, "no quantizer"),
        (kind.Q4_K, kind.Q8_0, x, out, "from F32, F16 or BF16"),
        (kind.Q4_K, kind.F32, x[:-4], out, "whole superblocks"),
        (kind.Q4_K, kind.F16, x[:-1], out, "whole superblocks"),
        (kind.Q4_K, kind.F32, x, out[:-1], "destination"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.quantize_weights(format, source, src, dst, team)
