"""Weights of GPTQ and AWQ checkpoints as rows of our formats, without loss.

Both have scale * (code - zero) with a zero of its own for each group, and codes packed eight to an int32 across the wrong
axis. code - zero is an integer that Q4_0 (zero 8 everywhere), Q5_0 (any zero of 4 bits) or Q8_0 holds, and the scale is
a float16 there as here, so nothing is rounded. Groups must be whole groups of 32 columns in their order.

Sources: the packing of AutoGPTQ's and AutoAWQ's linear layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.formats import dequantize
from hotloop.quant.pack_codes import CODE_RANGES, GROUP_SIZE, pack_codes
from hotloop.weights.hf.sources import FORMATS, TensorSource, order_of, read_columns
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor

_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""Which of eight outputs each nibble of an int32 belongs to, lowest first."""


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The tensors of one linear layer. codes, zeros: int32; g_idx: the group of each column, where the file says it."""

    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    g_idx: StoredTensor | None

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.codes.file.path}: tensor {quote(self.codes.name)}: {problem}")


class _PackedMatrix(TensorSource):
    """Rows (outputs) of a layer. bits: of a code. num_columns, num_rows: of the matrix [outputs, inputs]."""

    def __init__(self, layer: PackedLayer, bits: int, group_size: int, num_rows: int, num_columns: int) -> None:
        if 0 in (num_rows, num_columns) or num_rows * bits % 32:
            raise layer.error(f"holds {num_rows} x {num_columns} codes of {bits} bits, whose zeros fill no whole words")
        group_size = num_columns if group_size == -1 else min(group_size, num_columns)
        self._layer, self._bits, self._group_size = layer, bits, group_size
        num_groups = -(-num_columns // group_size)
        self._check(num_rows, num_columns, num_groups)
        self._scales = exact_scales(layer.scales, (num_groups, num_rows), layer.error)
        self._zeros = self._read_zeros(num_groups, num_rows)  # int16 [groups, rows]
        low, high = -int(self._zeros.max()), (1 << bits) - 1 - int(self._zeros.min())
        format = format_of_codes(low, high)
        if format is None:
            raise layer.error(
                f"codes of {bits} bits with zeros from {self._zeros.min()} to {self._zeros.max()} fit no format without "
                f"loss; take a symmetric checkpoint"
            )
        super().__init__(format, (num_rows, num_columns))

    @property
    def order(self) -> tuple[str, int]:
        return order_of(self._layer.codes)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        codes = self._read_codes(start, stop).reshape(stop - start, -1, self._group_size)
        # The difference fits int8, so what wraps on the way there wraps back.
        signed = codes.view(np.int8) - self._zeros[:, start:stop].T.astype(np.int8)[..., None]
        scales = np.repeat(self._scales[:, start:stop].T, self._group_size // GROUP_SIZE, axis=1)
        return pack_codes(self.format, signed.reshape(stop - start, -1), scales)

    @abstractmethod
    def _read_codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Codes of rows [start, stop): uint8 [rows, columns]."""

    @abstractmethod
    def _read_zeros(self, num_groups: int, num_rows: int) -> NDArray[np.int16]:
        """int16 [groups, rows]."""

    def _check(self, num_rows: int, num_columns: int, num_groups: int) -> None:
        """Raise ModelFileError where shapes do not fit together, or groups are no groups of our formats."""
        layer, bits = self._layer, self._bits
        if layer.scales.dtype not in FORMATS or layer.scales.shape != (num_groups, num_rows):
            raise layer.error(
                f"its scales are {layer.scales.dtype} {list(layer.scales.shape)}, not floats of {[num_groups, num_rows]}"
            )
        if layer.zeros.dtype != "I32" or layer.zeros.shape != (num_groups, num_rows * bits // 32):
            raise layer.error(
                f"its zeros are {layer.zeros.dtype} {list(layer.zeros.shape)}, not I32 of {[num_groups, num_rows * bits // 32]}"
            )
        if self._group_size % GROUP_SIZE or num_columns % self._group_size:
            raise layer.error(
                f"groups of {self._group_size} in rows of {num_columns} are not whole groups of {GROUP_SIZE}, as our formats "
                f"have them"
            )
        if layer.g_idx is not None:
            g_idx = layer.g_idx
            in_order = np.arange(num_columns, dtype=np.int32) // self._group_size
            if g_idx.dtype != "I32" or g_idx.shape != (num_columns,):
                raise layer.error(f"its g_idx is {g_idx.dtype} {list(g_idx.shape)}, not I32 of {[num_columns]}")
            if not np.array_equal(g_idx.read().view("<i4"), in_order):
                raise layer.error(
                    "the columns of its groups are not in order (desc_act), and neighbours in our formats share a scale; "
                    "take a checkpoint made with desc_act false"
                )


class GPTQZeros(Enum):
    """How a GPTQ file stores zeros: as they are, less 1 (files of the first version), or less 1 with a borrow.

    Where a zero is 0, -1 is no code. GPT-QModel takes 1 from all zeros of a word by one subtraction, so that the 0 borrows
    from its neighbour. Others spoil the word's other zeros, or leave them alone, and read each for itself.
    """

    AS_THEY_ARE = auto()
    LESS_ONE = auto()
    LESS_ONE_BORROWING = auto()


class GPTQMatrix(_PackedMatrix):
    """codes int32 [inputs bits / 32, outputs], zeros [groups, outputs bits / 32], lowest bits first."""

    def __init__(self, layer: PackedLayer, bits: int, group_size: int, zeros: GPTQZeros) -> None:
        self._stored_zeros = zeros
        if layer.codes.dtype != "I32" or len(layer.codes.shape) != 2:
            raise layer.error(f"is {layer.codes.dtype} {list(layer.codes.shape)}, not a matrix of I32")
        packed, num_rows = layer.codes.shape
        super().__init__(layer, bits, group_size, num_rows, packed * 32 // bits)

    def _read_codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        words = read_columns(self._layer.codes, start, stop).view("<u4")[..., 0]
        return unpack(words.T, self._bits)

    def _read_zeros(self, num_groups: int, num_rows: int) -> NDArray[np.int16]:
        words = self._layer.zeros.read().view("<u4").reshape(num_groups, -1)
        if self._stored_zeros is GPTQZeros.AS_THEY_ARE:
            return unpack(words, self._bits).astype(np.int16)
        largest = (1 << self._bits) - 1
        zeros = unpack(words + np.uint32(0xFFFFFFFF // largest), self._bits)  # 1 at each place; what leaves the word is lost
        alone = unpack(words, self._bits) + np.uint8(1) & np.uint8(largest)
        if self._stored_zeros is GPTQZeros.LESS_ONE and not np.array_equal(zeros, alone):
            raise self._layer.error(
                "has zeros of 0, stored less 1, from which programs make different zeros; take a symmetric checkpoint, or one "
                "whose checkpoint_format is gptq_v2"
            )
        return zeros.astype(np.int16)


class AWQMatrix(_PackedMatrix):
    """codes int32 [inputs, outputs / 8], zeros [groups, outputs / 8]: eight outputs of 4 bits, in AWQ's order."""

    def __init__(self, layer: PackedLayer, group_size: int) -> None:
        if layer.codes.dtype != "I32" or len(layer.codes.shape) != 2:
            raise layer.error(f"is {layer.codes.dtype} {list(layer.codes.shape)}, not a matrix of I32")
        num_columns, packed = layer.codes.shape
        super().__init__(layer, 4, group_size, packed * 8, num_columns)

    def _read_codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        first, last = start // 8, -(-stop // 8)
        words = read_columns(self._layer.codes, first, last).view("<u4")[..., 0]
        return np.ascontiguousarray(self._in_order(words).T[start - first * 8 : stop - first * 8])

    def _read_zeros(self, num_groups: int, num_rows: int) -> NDArray[np.int16]:
        return self._in_order(self._layer.zeros.read().view("<u4").reshape(num_groups, -1)).astype(np.int16)

    @staticmethod
    def _in_order(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """[n, outputs / 8] -> uint8 [n, outputs]."""
        nibbles = unpack(words, 4).reshape(len(words), -1, 8)
        ordered = np.empty_like(nibbles)
        ordered[..., _AWQ_ORDER] = nibbles
        return ordered.reshape(len(words), -1)


def exact_scales(
    scales: StoredTensor, shape: tuple[int, int], error: Callable[[str], ModelFileError]
) -> NDArray[np.float16]:
    """Scales as float16 of `shape`, unrounded. Raises `error` where they are none."""
    values = dequantize(FORMATS[scales.dtype], scales.read(), shape)
    with np.errstate(over="ignore"):
        exact = values.astype(np.float16)
    if not (np.isfinite(values).all() and np.array_equal(exact.astype(np.float32), values)):
        raise error("its scales are no float16 numbers, and would be rounded; take another checkpoint")
    return exact


def format_of_codes(low: int, high: int) -> str | None:
    """The smallest format that holds the codes from low to high; None where there is none."""
    return next((name for name, (least, most) in CODE_RANGES.items() if least <= low and high <= most), None)


def unpack(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """uint32 [n, m] -> uint8 [n, m 32 / bits], lowest bits first. bits: 2, 4 or 8."""
    stored = np.ascontiguousarray(words, "<u4").view(np.uint8)
    codes = np.empty((*stored.shape, 8 // bits), np.uint8)
    for i in range(8 // bits):
        codes[..., i] = stored >> np.uint8(bits * i) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(words), -1)
