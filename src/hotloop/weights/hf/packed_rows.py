"""Integer weights of compressed-tensors ("pack-quantized") as rows of our formats, without loss.

Codes are packed along the row, eight of 4 bits (or four of 8) to an int32, lowest bits first, stored plus half of their range;
scale * (code - zero) with the scale of the group. Source: the packing of the compressed-tensors package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.pack_codes import GROUP_SIZE, pack_codes
from hotloop.weights.hf.packed_integers import exact_scales, format_of_codes, unpack
from hotloop.weights.hf.sources import FORMATS, TensorSource, order_of
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor


class PackedRows(TensorSource):
    """codes: int32 [rows, columns bits / 32]. scale: [rows, groups]. shape: int64 [2], of the matrix. Symmetric only."""

    def __init__(self, codes: StoredTensor, scale: StoredTensor, shape: StoredTensor, bits: int) -> None:
        self._codes, self._bits = codes, bits
        if shape.dtype != "I64" or shape.shape != (2,):
            raise self._error(f"its shape is {shape.dtype} {list(shape.shape)}, not two of I64")
        rows, columns = (int(size) for size in shape.read().view("<i8"))
        if rows < 1 or columns < 1 or codes.dtype != "I32" or codes.shape != (rows, columns * bits // 32):
            raise self._error(f"is {codes.dtype} {list(codes.shape)}, which does not hold {rows} x {columns} {bits}-bit codes")
        groups = scale.shape[1] if len(scale.shape) == 2 else 0
        if scale.dtype not in FORMATS or groups < 1 or scale.shape[0] != rows or columns % (groups * GROUP_SIZE):
            raise self._error(
                f"its scale is {scale.dtype} {list(scale.shape)}; it must be floats, for groups of {GROUP_SIZE} columns or "
                f"multiples of them"
            )
        self._scales = exact_scales(scale, (rows, groups), self._error)
        self._repeats = columns // groups // GROUP_SIZE
        format = format_of_codes(-(1 << bits - 1), (1 << bits - 1) - 1)
        assert format is not None
        super().__init__(format, (rows, columns))

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._codes)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        words = self._codes.read_rows(start, stop).view("<u4").reshape(stop - start, -1)
        codes = (unpack(words, self._bits) - np.uint8(1 << self._bits - 1)).view(np.int8)
        return pack_codes(self.format, codes, np.repeat(self._scales[start:stop], self._repeats, axis=1))

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._codes.file.path}: tensor {quote(self._codes.name)}: {problem}")
