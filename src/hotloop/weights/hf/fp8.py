"""Weights of FP8 checkpoints (e4m3 with a scale for the tensor, each row or each block) in a float format that holds them.

An e4m3 number has 4 significant bits. Times a power of two it is a BF16 number; times a scale of up to 20 significant bits,
such as any bf16 scale, an F32 number. What needs more is refused rather than rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.formats import dequantize, quantize
from hotloop.weights.hf.sources import FORMATS, TensorSource, order_of
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor

_SCALE_BITS = 20  # 24 of a float32 less the 4 of an e4m3
_MAX_EXPONENT = 100
_E8M0 = "F8_E8M0"
"""Powers of two by their exponent (bias 127); 255 is NaN."""


def _e4m3_values() -> NDArray[np.float32]:
    """What the 256 codes stand for: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, NaN at 0x7f and 0xff."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -size, size).astype(np.float32)


E4M3_VALUES = _e4m3_values()


class FP8Matrix(TensorSource):
    """scale: one number, one for each row, or one for each block of [rows, columns]. block: that size, for the last kind."""

    def __init__(self, weight: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None) -> None:
        self._weight = weight
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise self._error(f"has the shape {list(weight.shape)}; it must be a matrix")
        if scale.dtype not in (*FORMATS, _E8M0):
            raise self._error(f"its scale is {scale.dtype}; hotloop reads BF16, F16, F32 and {_E8M0}")
        rows, columns = weight.shape
        self._block = (rows, columns)
        if scale.shape in ((), (1,), (1, 1)):
            shape = (1, 1)
        elif scale.shape in ((rows,), (rows, 1)):
            shape, self._block = (rows, 1), (1, columns)
        elif block is not None and scale.shape == (-(-rows // block[0]), -(-columns // block[1])):
            shape, self._block = (scale.shape[0], scale.shape[1]), (min(block[0], rows), min(block[1], columns))
        else:
            raise self._error(f"its scale has the shape {list(scale.shape)}, which fits neither rows nor blocks of {block}")
        if scale.dtype == _E8M0:
            exponents = scale.read().astype(np.int32) - 127
            scales = np.ldexp(np.float32(1), np.minimum(exponents, 127))
            self._scale = np.where(exponents == 128, np.float32(np.nan), scales).reshape(shape)
        else:
            self._scale = dequantize(FORMATS[scale.dtype], scale.read(), shape)
        super().__init__(self._exact_format(), weight.shape)

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._weight)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        rows, columns = self._block
        scale = np.repeat(self._scale[np.arange(start, stop) // rows], columns, axis=1)[:, : self.shape[1]]
        values = E4M3_VALUES[self._weight.read_rows(start, stop)].reshape(stop - start, -1) * scale
        return quantize(self.format, values)

    def _exact_format(self) -> str:
        """The smallest format without rounding. Raises ModelFileError where there is none."""
        mantissas, exponents = np.frexp(self._scale)
        if not np.isfinite(self._scale).all() or (np.abs(exponents) > _MAX_EXPONENT).any():
            raise self._error("its scales are infinite or out of range")
        if (np.abs(mantissas) == 0.5).all():
            return "BF16"
        if (np.ldexp(mantissas, _SCALE_BITS) % 1 == 0).all():
            return "F32"
        raise self._error(
            f"its scales have more than {_SCALE_BITS} significant bits: no format holds the products without rounding; "
            f"take a checkpoint in bf16, or with bf16 scales"
        )

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._weight.file.path}: tensor {quote(self._weight.name)}: {problem}")
