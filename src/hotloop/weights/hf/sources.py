"""Where a tensor of a folder comes from, and what is done to it on reading: each class reads rows of one tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.formats import dequantize
from hotloop.weights.safetensors import StoredTensor

FORMATS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
"""dtypes of safetensors that are formats as they are."""


class TensorSource(ABC):
    """One tensor as the model sees it. format, shape: as in TensorInfo."""

    def __init__(self, format: str, shape: tuple[int, ...]) -> None:
        self.format = format
        self.shape = shape

    @property
    def location(self) -> tuple[int, int] | None:
        """A file descriptor and the offset of the bytes, where they lie in a file as they are."""
        return None

    @property
    @abstractmethod
    def order(self) -> tuple[str, int]:
        """Where it is read from: file and offset, for reading all tensors in the order of the files."""

    @abstractmethod
    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows [start, stop) in the format: uint8. Raises OSError, EOFError, ValueError as StoredTensor."""


class AsStored(TensorSource):
    """The bytes of the file."""

    def __init__(self, stored: StoredTensor) -> None:
        super().__init__(FORMATS[stored.dtype], stored.shape)
        self._stored = stored

    @property
    def location(self) -> tuple[int, int] | None:
        return self._stored.file.fileno(), self._stored.offset

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._stored)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self._stored.read_rows(start, stop)


class PermutedHeads(TensorSource):
    """Rows (or elements of a bias) of each head from half-split to adjacent rotated pairs: 0, d/2, 1, d/2 + 1, ...

    What converters do to q and k of the llama architecture. Rows must be a multiple of 2 num_heads.
    """

    def __init__(self, source: TensorSource, num_heads: int) -> None:
        super().__init__(source.format, source.shape)
        self._source = source
        self._head_rows = source.shape[0] // num_heads

    @property
    def order(self) -> tuple[str, int]:
        return self._source.order

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        if len(self.shape) == 1:
            data = self._source.read_rows(0, 1)
            return self._permute(data, self.shape[0]) if (start, stop) == (0, 1) else data[:0]
        begin = start // self._head_rows * self._head_rows
        end = min(-(-stop // self._head_rows) * self._head_rows, self.shape[0])
        data = self._permute(self._source.read_rows(begin, end), end - begin)
        row_bytes = len(data) // max(end - begin, 1)
        return data[(start - begin) * row_bytes : (stop - begin) * row_bytes]

    def _permute(self, data: NDArray[np.uint8], num_rows: int) -> NDArray[np.uint8]:
        heads = data.reshape(num_rows // self._head_rows, 2, self._head_rows // 2, -1)
        return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1)


class PlusOne(TensorSource):
    """A vector of gains w as 1 + w, float32: what the checkpoint's norm multiplies by. Computed in float32, as there."""

    def __init__(self, source: TensorSource) -> None:
        super().__init__("F32", source.shape)
        self._source = source

    @property
    def order(self) -> tuple[str, int]:
        return self._source.order

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        data = self._source.read_rows(start, stop)
        shape = (stop - start, self.shape[-1])
        values = dequantize(self._source.format, data, shape) + np.float32(1)
        return values.reshape(-1).view(np.uint8)


class Transposed(TensorSource):
    """A matrix [in, out] as [out, in]: GPT-2's layers are stored so. Read a few columns at a time."""

    def __init__(self, stored: StoredTensor) -> None:
        super().__init__(FORMATS[stored.dtype], stored.shape[::-1])
        self._stored = stored

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._stored)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        return np.ascontiguousarray(read_columns(self._stored, start, stop).swapaxes(0, 1)).reshape(-1)


class InMemory(TensorSource):
    """A tensor that no file has: it follows from the configuration. values: float32."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        super().__init__("F32", values.shape)
        self._rows = np.ascontiguousarray(values, "<f4").reshape(prod(values.shape[:-1]), -1)

    @property
    def order(self) -> tuple[str, int]:
        return "", 0

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self._rows[start:stop].copy().reshape(-1).view(np.uint8)


def read_columns(stored: StoredTensor, start: int, stop: int) -> NDArray[np.uint8]:
    """Columns [start, stop) of a matrix, read row by row: uint8 [rows, columns, bytes of an element]."""
    rows, columns = stored.shape
    itemsize = stored.nbytes // max(rows * columns, 1)
    size = (stop - start) * itemsize
    data = np.empty((rows, size), np.uint8)
    for row in range(rows):
        data[row] = stored.read_bytes((row * columns + start) * itemsize, size)
    return data.reshape(rows, stop - start, itemsize)


def order_of(stored: StoredTensor) -> tuple[str, int]:
    """As TensorSource.order."""
    return stored.file.path.name, stored.offset
