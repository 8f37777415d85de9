"""ModelFile: what all of hotloop reads a model from, whatever lies on disk: typed metadata and named tensors.

Names, metadata keys and values are GGUF's, as llama.cpp's converter writes them. An implementation that reads something else
(a Hugging Face folder, a model that is quantized on the way) presents it in these terms, so that nothing behind it differs.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError

MetadataValue = bool | int | float | str | list[str] | NDArray[Any]


class _Required(Enum):
    REQUIRED = "required"


_REQUIRED: Final = _Required.REQUIRED
_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a model file.

    shape: numpy order: rows (output features) first, the contiguous axis last.
    format: a name in hotloop.quant.formats.WEIGHT_FORMATS.
    nbytes: bytes of data, padding not counted.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int

    @property
    def num_rows(self) -> int:
        """Of a vector: 1."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.nbytes // max(self.num_rows, 1)


def quote(name: str) -> str:
    """`name` in quotes, with control characters escaped, short enough for an error message."""
    return repr(name if len(name) <= 100 else name[:97] + "...")


def describe(value: MetadataValue | None) -> str:
    """`value` in a few words, for an error message."""
    if isinstance(value, list | np.ndarray):
        return f"an array of {len(value)} items"
    return quote(value) if isinstance(value, str) else repr(value)


class ModelFile(ABC):
    """A model on disk, open for reading.

    path: as given. paths: every file that the model's mathematics and vocabulary depend on, in a fixed order.
    metadata: scalars are Python values, string arrays list[str], numeric arrays read-only numpy arrays.
    tensors: in the order in which they are best read.
    nbytes: total size of the files.
    """

    def __init__(
        self,
        path: Path,
        paths: tuple[Path, ...],
        metadata: Mapping[str, MetadataValue],
        tensors: Mapping[str, TensorInfo],
        nbytes: int,
    ) -> None:
        self.path = path
        self.paths = paths
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(dict(metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))
        self.nbytes = nbytes

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """A copy of rows [start, stop) of a tensor in its format: uint8 [(stop - start) * row_bytes].

        Raises: ModelFileError if the model has no such tensor, or it cannot be read any more; ValueError after `close`.
        """

    @abstractmethod
    def location(self, name: str) -> tuple[int, int] | None:
        """Where a tensor's bytes lie as they are: a file descriptor, valid until `close`, and the offset in its file.

        None for a tensor that has to be made from others: `read_rows`. Raises as `read_rows`.
        """

    def number_type(self, key: str) -> np.dtype[Any] | None:
        """The dtype that a number of the metadata has in the file; None for GGUF's usual one: u32, i32 or f32."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def info(self, name: str) -> TensorInfo:
        """Raises ModelFileError if the model has no such tensor."""
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: the tensor {quote(self.source_name(name))} is missing")
        return self.tensors[name]

    def read(self, name: str) -> NDArray[np.uint8]:
        """A copy of a tensor's bytes: uint8 [tensors[name].nbytes]. Raises as `read_rows`."""
        return self.read_rows(name, 0, self.info(name).num_rows)

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, uint8 [tensors[name].nbytes], read-only: mapped where that is possible, else a copy.

        For those who look here and there. Raises as `read_rows`.
        """
        data = self.read(name)
        data.flags.writeable = False
        return data

    def source_name(self, name: str) -> str:
        """What the files call a tensor, whether or not it is there: for messages."""
        return name

    def source_key(self, key: str) -> str | None:
        """What the files call a metadata key, where they have another name for it: for messages."""
        return None

    def unreadable(self, name: str, why: str) -> ModelFileError:
        """The error of a tensor that was there when the file was opened."""
        return ModelFileError(
            f"{self.path}: the tensor {quote(self.source_name(name))} cannot be read any more: {why}; "
            f"let whatever writes the file finish, and load it again"
        )

    def get_int(self, key: str, default: _D | _Required = _REQUIRED) -> int | _D:
        """Return an integer; a missing key is `default`, or a ModelFileError where none is given."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, value, "an integer")
        return value

    def get_float(self, key: str, default: _D | _Required = _REQUIRED) -> float | _D:
        """Return a finite float (an integer is converted), else as `get_int`."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            self._wrong(key, value, "a finite number")
        return float(value)

    def get_str(self, key: str, default: _D | _Required = _REQUIRED) -> str | _D:
        """Return a string, else as `get_int`."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            self._wrong(key, value, "a string")
        return value

    def get_bool(self, key: str, default: _D | _Required = _REQUIRED) -> bool | _D:
        """Return a boolean, else as `get_int`."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, bool):
            self._wrong(key, value, "a boolean")
        return value

    def get_strings(self, key: str, default: _D | _Required = _REQUIRED) -> list[str] | _D:
        """Return an array of strings, else as `get_int`."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, list):
            self._wrong(key, value, "an array of strings")
        return value

    def get_array(self, key: str, default: _D | _Required = _REQUIRED) -> NDArray[Any] | _D:
        """Return an array of numbers, in the dtype of the file, else as `get_int`."""
        value = self.metadata.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, np.ndarray):
            self._wrong(key, value, "an array of numbers")
        return value

    def _default(self, key: str, default: _D | _Required) -> _D:
        if isinstance(default, _Required):
            raise ModelFileError(f"{self.path}: the metadata key {quote(key)} is missing")
        return default

    def _wrong(self, key: str, value: MetadataValue, wanted: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path}: metadata key {quote(key)} must be {wanted}, but is {describe(value)}"
        )


def read_at(fd: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
    """Bytes of an open file: uint8 [nbytes]. Raises OSError, EOFError where the file ends in them."""
    data = np.empty(nbytes, np.uint8)
    done = 0
    while done < nbytes:
        count = os.preadv(fd, [data[done:].data], offset + done)
        if not count:
            raise EOFError("the file ends in it")
        done += count
    return data
