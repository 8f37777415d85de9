"""Integer weights of compressed-tensors as rows of our formats, without loss: "pack-quantized" and "int-quantized".

Codes lie along the row: bytes, or packed, eight of 4 bits (or four of 8) to an int32, lowest bits first, stored plus half of
their range. An element is scale * code, with the scale of its group. Source: the packing of the compressed-tensors package.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.pack_codes import GROUP_SIZE, pack_codes
from hotloop.weights.hf.packed_integers import exact_scales, format_of_codes, unpack
from hotloop.weights.hf.sources import FORMATS, TensorSource, order_of
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor


class _IntegerRows(TensorSource):
    """codes: as a class below has them. scale: [rows, groups], or one for all. bits: of a code. Symmetric only.

    group_size: columns that share a scale.
    """

    def __init__(self, codes: StoredTensor, scale: StoredTensor, rows: int, columns: int, bits: int) -> None:
        self._codes, self._bits = codes, bits
        one_for_all = scale.shape in ((), (1,), (1, 1))
        groups = 1 if one_for_all else scale.shape[1] if len(scale.shape) == 2 and scale.shape[0] == rows else 0
        if scale.dtype not in FORMATS or groups < 1 or columns % (groups * GROUP_SIZE):
            raise self._error(
                f"its scale is {scale.dtype} {list(scale.shape)}; it must be floats, for groups of {GROUP_SIZE} columns or "
                f"multiples of them"
            )
        scales = exact_scales(scale, (1, 1) if one_for_all else (rows, groups), self._error)
        self._scales = np.broadcast_to(scales, (rows, groups))
        self.group_size = columns // groups
        format = format_of_codes(-(1 << bits - 1), (1 << bits - 1) - 1)
        assert format is not None
        super().__init__(format, (rows, columns))

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._codes)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        scales = np.repeat(self._scales[start:stop], self.group_size // GROUP_SIZE, axis=1)
        return pack_codes(self.format, self._read_codes(start, stop), scales)

    @abstractmethod
    def _read_codes(self, start: int, stop: int) -> NDArray[np.int8]:
        """Codes of rows [start, stop): int8 [rows, columns]."""

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._codes.file.path}: tensor {quote(self._codes.name)}: {problem}")


class PackedRows(_IntegerRows):
    """codes: int32 [rows, columns bits / 32]. shape: int64 [2], of the matrix."""

    def __init__(self, codes: StoredTensor, scale: StoredTensor, shape: StoredTensor, bits: int) -> None:
        self._codes = codes
        if shape.dtype != "I64" or shape.shape != (2,):
            raise self._error(f"its shape is {shape.dtype} {list(shape.shape)}, not two of I64")
        rows, columns = (int(size) for size in shape.read().view("<i8"))
        if rows < 1 or columns < 1 or codes.dtype != "I32" or codes.shape != (rows, columns * bits // 32):
            raise self._error(f"is {codes.dtype} {list(codes.shape)}, which does not hold {rows} x {columns} {bits}-bit codes")
        super().__init__(codes, scale, rows, columns, bits)

    def _read_codes(self, start: int, stop: int) -> NDArray[np.int8]:
        words = self._codes.read_rows(start, stop).view("<u4").reshape(stop - start, -1)
        return (unpack(words, self._bits) - np.uint8(1 << self._bits - 1)).view(np.int8)


class Int8Rows(_IntegerRows):
    """codes: int8 [rows, columns]."""

    def __init__(self, codes: StoredTensor, scale: StoredTensor) -> None:
        self._codes = codes
        if codes.dtype != "I8" or len(codes.shape) != 2 or 0 in codes.shape:
            raise self._error(f"is {codes.dtype} {list(codes.shape)}, not a matrix of I8")
        super().__init__(codes, scale, *codes.shape, 8)

    def _read_codes(self, start: int, stop: int) -> NDArray[np.int8]:
        return self._codes.read_rows(start, stop).view(np.int8).reshape(stop - start, -1)
