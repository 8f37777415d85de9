"""Open one safetensors file: its header checked entry by entry, its tensors located.

Layout (little-endian): header length u64, header (JSON), data. The header maps each tensor's name to its dtype, shape and
[begin, end) in the data, and "__metadata__" to a map of strings. Tensors cover the data without holes.
Source: the format section of the safetensors project's README.

Nothing is allocated on the word of the file beyond the header, and that is bounded.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.weights.model_file import quote, read_at

MAX_HEADER_BYTES = 16 << 20
"""Of one file; the header of 60,000 tensors takes 8 MB."""
MAX_TENSORS = 1 << 16
MAX_DIMS = 8

_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "BF16": 16, "F16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
_LENGTH_BYTES = 8
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: offset counts bytes from the file's start, name is the file's."""

    file: "SafetensorsFile"
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Of one row along the last axis."""
        return self.nbytes // max(prod(self.shape[:-1]), 1)

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows [start, stop) along the last axis: uint8 [(stop - start) * row_bytes]. Raises as `read_bytes`."""
        return self.read_bytes(start * self.row_bytes, (stop - start) * self.row_bytes)

    def read(self) -> NDArray[np.uint8]:
        """All of it: uint8 [nbytes]. Raises as `read_bytes`."""
        return self.read_bytes(0, self.nbytes)

    def read_bytes(self, begin: int, size: int) -> NDArray[np.uint8]:
        """uint8 [size]. Raises OSError, EOFError (the file was truncated meanwhile), ValueError after `close`."""
        return read_at(self.file.fileno(), self.offset + begin, size)


class SafetensorsFile:
    """One file, open. tensors: by the name that the file gives them, in the order of their bytes."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Use `SafetensorsFile.open`."""
        self.path = path
        self._file = file
        self.nbytes = os.fstat(file.fileno()).st_size
        self.tensors: Mapping[str, StoredTensor] = self._parse()

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Raises: ModelNotFoundError, ModelFileError naming the file and the tensor or length at fault."""
        try:
            # Looked at before it is opened: opening a pipe would wait for a writer.
            if not stat.S_ISREG(path.stat().st_mode):
                raise ModelFileError(f"{path} is not a regular file")
            file = path.open("rb")
        except FileNotFoundError as error:
            what = "links to a file that is not there" if path.is_symlink() else "there is no such file"
            raise ModelNotFoundError(f"{path}: {what}; download it again") from error
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return cls(path, file)
        except OSError as error:
            file.close()
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
        except BaseException:
            file.close()
            raise

    def fileno(self) -> int:
        """Valid until `close`; ValueError afterwards."""
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def _parse(self) -> dict[str, StoredTensor]:
        header, data_start = self._header()
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._fail("__metadata__ must map names to strings")
        if len(header) > MAX_TENSORS:
            self._fail(f"the header lists {len(header)} tensors; {MAX_TENSORS} at most")
        tensors = [self._tensor(name, entry, data_start) for name, entry in header.items()]
        tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
        self._check_layout(tensors, data_start)
        return {tensor.name: tensor for tensor in tensors}

    def _header(self) -> tuple[dict[str, Any], int]:
        prefix = self._file.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            self._fail(f"{self.nbytes} bytes cannot hold a safetensors header; download the file again")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER_BYTES:
            self._fail(f"no safetensors file: its header would have {length} bytes, the limit is {MAX_HEADER_BYTES}")
        if length > self.nbytes - _LENGTH_BYTES:
            missing = length + _LENGTH_BYTES - self.nbytes
            self._fail(f"the header has {length} bytes, of which {missing} are missing: it is truncated; download it again")
        try:
            header = json.loads(self._file.read(length), object_pairs_hook=_unique, parse_constant=_no_constant)
        except RecursionError:
            self._fail("the header is nested too deeply")
        except ValueError as error:
            self._fail(f"the header is no valid JSON ({error}); download the file again")
        if not isinstance(header, dict):
            self._fail("the header must be a JSON object")
        return header, _LENGTH_BYTES + length

    def _tensor(self, name: str, entry: object, data_start: int) -> StoredTensor:
        what = f"tensor {quote(name)}"
        if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
            self._fail(f"{what} must have dtype, shape and data_offsets, and is {entry!r:.100}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            self._fail(f"{what} has the unknown dtype {dtype!r:.40}; known: {', '.join(_BITS)}")
        if not _are_sizes(shape) or len(shape) > MAX_DIMS:
            self._fail(f"{what}: shape must be at most {MAX_DIMS} sizes, not {shape!r:.100}")
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"{what}: data_offsets must be a begin and an end, not {offsets!r:.100}")
        begin, end = offsets
        bits = prod(shape) * _BITS[dtype]
        if bits % 8 or bits // 8 != end - begin:
            self._fail(f"{what}: {dtype} of {shape} takes {bits / 8:.15g} bytes, but its data_offsets say {end - begin}")
        return StoredTensor(self, name, dtype, tuple(shape), data_start + begin, end - begin)

    def _check_layout(self, tensors: list[StoredTensor], data_start: int) -> None:
        """The tensors cover the data, and no two share a byte."""
        end, previous = data_start, ""
        for tensor in tensors:
            if tensor.offset < end:
                self._fail(f"tensors {quote(previous)} and {quote(tensor.name)} overlap in the file")
            if tensor.offset > end:
                self._fail(f"{tensor.offset - end} bytes before tensor {quote(tensor.name)} belong to no tensor")
            end, previous = tensor.offset + tensor.nbytes, tensor.name
        if end > self.nbytes:
            cut = next(tensor.name for tensor in tensors if tensor.offset + tensor.nbytes > self.nbytes)
            self._fail(
                f"the tensors end at byte {end}, but the file at {self.nbytes}: {end - self.nbytes} bytes are missing, "
                f"from tensor {quote(cut)} on; download the file again"
            )
        if end < self.nbytes:
            self._fail(f"{self.nbytes - end} bytes after the last tensor belong to no tensor; download the file again")

    def _fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {message}")


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError for a key that it has twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{quote(twice)} appears twice")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
