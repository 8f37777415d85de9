"""Weights and activations for the tests of the linear kernels, and the numpy definition they are held to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.quant.activations import GROUP_SIZE, quantize_activations
from hotloop.quant.codecs import UNPACK
from hotloop.quant.formats import WEIGHT_FORMATS, dequantize, unpack

FLOAT_FORMATS = ("F32", "F16", "BF16")
INTEGER_FORMATS = tuple(UNPACK)
FORMATS = FLOAT_FORMATS + INTEGER_FORMATS

# Byte offsets of the f16 scales in a superblock as stored in a file.
F16_OFFSETS: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
UNIT = 2.0**-24  # largest relative error of one f32 rounding


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [rows, cols] as stored in a file and repacked."""

    format: str
    rows: int
    cols: int
    source: NDArray[np.uint8]

    @property
    def packed(self) -> NDArray[np.uint8]:
        return _native.repack(self.format, self.source, self.rows, self.cols)

    def dequantized(self) -> NDArray[np.float32]:
        return dequantize(self.format, self.source, (self.rows, self.cols))

    def linear(
        self,
        isa: str,
        x: NDArray[np.float32],
        activations: str = "int8",
        row_blocks: tuple[int, int] | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> NDArray[np.float32]:
        """The kernel's W x: float32 [tokens, rows], padding rows cut off if all row blocks are asked for."""
        out = _native.linear(
            isa, self.format, self.packed, self.rows, self.cols, x, activations, row_blocks, tokens
        )
        return out[:, : self.rows] if row_blocks is None else out


def random_weights(
    format: str, rows: int, cols: int, rng: np.random.Generator, scales: tuple[float, float] = (-0.1, 0.1)
) -> Weights:
    """Random bytes for the codes (every code occurs), f16 scales drawn uniformly from `scales`."""
    if format in FLOAT_FORMATS:
        values = rng.normal(size=(rows, cols)).astype(np.float32)
        return float_weights(format, values)
    weight_format = WEIGHT_FORMATS[format]
    superblocks = rng.integers(
        0, 256, (rows * cols // weight_format.superblock_size, weight_format.superblock_bytes)
    )
    source = superblocks.astype(np.uint8)
    for offset in F16_OFFSETS[format]:
        put_f16(source, offset, rng.uniform(*scales, len(source)))
    if format == "MXFP4":
        put_exponents(source, rng.uniform(*scales, len(source)))
    return Weights(format, rows, cols, source.reshape(-1))


def put_exponents(superblocks: NDArray[np.uint8], values: NDArray[np.float64] | float) -> None:
    """Write the exponents of the powers of two at or below |values| into MXFP4 superblocks; 0 gives the least."""
    superblocks[:, 0] = (128 + np.frexp(values)[1] - 1).clip(0, 255) * (np.asarray(values) != 0)


def put_f16(superblocks: NDArray[np.uint8], offset: int, values: NDArray[np.floating] | float) -> None:
    """Write f16 `values` at a byte offset of superblocks uint8 [n, superblock_bytes]."""
    f16 = np.broadcast_to(np.asarray(values, np.float16), len(superblocks))
    superblocks[:, offset : offset + 2] = np.ascontiguousarray(f16).view(np.uint8).reshape(-1, 2)


def float_weights(format: str, values: NDArray[np.float32]) -> Weights:
    rows, cols = values.shape
    if format == "F32":
        source = values.view(np.uint8)
    elif format == "F16":
        source = values.astype(np.float16).view(np.uint8)
    else:
        source = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return Weights(format, rows, cols, source.reshape(-1))


def random_activations(tokens: int, cols: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Activations whose groups differ in magnitude, as a model's do."""
    magnitude = np.exp(rng.normal(size=(tokens, cols // GROUP_SIZE, 1)))
    return (
        (rng.normal(size=(tokens, cols // GROUP_SIZE, GROUP_SIZE)) * magnitude)
        .astype(np.float32)
        .reshape(tokens, cols)
    )


def reference_int8(
    weights: Weights, x: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """W x in float64 over dequantized weights and quantized activations, and the largest error allowed.

    A kernel's output is one f32 chain of at most two fma per group of 32. Each step rounds once, and the
    factor of a term (d * x_scale or scaled_sum) once before: n steps err by at most (n + 1) UNIT (1 + small)
    times the sum of the terms' magnitudes. A product that underflows errs by 2^-150, times an integer below
    2^24.
    """
    codes, scales = quantize_activations(x)
    tokens, cols = x.shape
    groups = cols // GROUP_SIZE
    unpacked = unpack(weights.format, weights.source, (weights.rows, weights.cols))
    per_scale = weights.cols // unpacked.scales.shape[-1]
    activations = codes.astype(np.float64).reshape(tokens, -1, per_scale)
    weight_codes = unpacked.codes.astype(np.float64).reshape(weights.rows, -1, per_scale)
    x_scales = np.repeat(scales.astype(np.float64), GROUP_SIZE // per_scale, axis=1)
    dots = (
        np.einsum("rgk,tgk->trg", weight_codes, activations)
        * unpacked.scales.astype(np.float64)
        * x_scales[:, None]
    )
    value = dots.sum(axis=-1)
    magnitude = np.abs(dots).sum(axis=-1)
    if unpacked.minimums is not None:
        sums = activations.sum(axis=-1) * x_scales
        minimums = unpacked.minimums.astype(np.float64) * sums[:, None]
        value += minimums.sum(axis=-1)
        magnitude += np.abs(minimums).sum(axis=-1)
    return value, 1.01 * (2 * groups + 1) * UNIT * magnitude + groups * 2.0 ** (24 - 150)


def reference_f32(
    weights: Weights, x: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same with f32 activations: one fma per k, each rounds once (underflow: 2^-150)."""
    w = weights.dequantized().astype(np.float64)
    value = x.astype(np.float64) @ w.T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T
    return value, 1.01 * weights.cols * (UNIT * magnitude + 2.0**-150)


def bits(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bits of x, every NaN made one: which NaN an operation returns is not part of the contract."""
    out = np.ascontiguousarray(x).view(np.uint32).copy()
    out[np.isnan(x)] = 0x7FC00000
    return out


def assert_same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(bits(actual), bits(expected))
