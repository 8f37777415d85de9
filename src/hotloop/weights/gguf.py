"""Open a GGUF model, whole or in parts, as memory-mapped, bounds-checked tensors and typed metadata."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Final, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.weights.gguf_header import Header, MetadataValue, TensorInfo, describe, parse_header, quote

__all__ = ["GGUFFile", "MetadataValue", "TensorInfo"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_PARTS = 1000


class _Required(Enum):
    REQUIRED = "required"


_REQUIRED: Final = _Required.REQUIRED
_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class _Part:
    """One file: open, mapped, parsed."""

    file: BinaryIO
    mapping: mmap
    header: Header


class GGUFFile:
    """A GGUF model, opened through its file or through any part of a split one.

    path: as given. paths: every part, in order.
    version, metadata: of the first part. Scalars are Python values, string arrays list[str], numeric arrays
    read-only numpy arrays in the dtype of the file.
    tensors: of all parts.
    nbytes: total size of the files.

    `data` maps a tensor: for those who look here and there. `read` copies one and `location` tells where it lies: for
    those who want all of it, without pages of the mapping in their memory, and safe from a file that is truncated meanwhile.
    Views stay valid after `close`: a mapping is released together with its last view.
    """

    def __init__(self, path: Path, paths: tuple[Path, ...], parts: list[_Part]) -> None:
        """Use `GGUFFile.open`."""
        self.path = path
        self.paths = paths
        self.version = parts[0].header.version
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(dict(parts[0].header.metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: tensor for part in parts for name, tensor in part.header.tensors.items()}
        )
        self.nbytes = sum(len(part.mapping) for part in parts)
        self._files = [part.file for part in parts]
        self._location = {name: (part, offset) for part in parts for name, offset in part.header.offsets.items()}

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map the model at `path` and parse its header.

        Raises: ModelNotFoundError if there is no such file; ModelFileError naming the file and the key or
        tensor at fault if it is not a well-formed little-endian GGUF file of version 2 or 3.
        """
        path = Path(path)
        paths = _part_paths(path)
        parts = [_open_part(part) for part in paths]
        _check_parts(paths, [part.header for part in parts])
        return cls(path, paths, parts)

    def close(self) -> None:
        """Let go of the files; views handed out before keep their mapping alive."""
        self._location = {}
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: uint8 [tensors[name].nbytes], read-only, mapped, not copied.

        Raises: ModelFileError if the model has no such tensor, or the file was truncated meanwhile; ValueError after
        `close`.
        """
        part, offset = self._locate(name)
        mapping = part.mapping
        if mapping.size() < len(mapping):  # touching what is gone would end the process
            raise self.unreadable(name, f"the file shrank to {mapping.size()} bytes")
        return np.frombuffer(mapping, np.uint8, count=self.tensors[name].nbytes, offset=offset)

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return a copy of a tensor's bytes: uint8 [tensors[name].nbytes]. Raises as `data`."""
        fd, offset = self.location(name)
        data = np.empty(self.tensors[name].nbytes, np.uint8)
        done = 0
        while done < data.nbytes:
            try:
                count = os.preadv(fd, [data[done:].data], offset + done)
            except OSError as error:
                raise self.unreadable(name, str(error.strerror)) from None
            if not count:
                raise self.unreadable(name, "the file ends in it")
            done += count
        return data

    def location(self, name: str) -> tuple[int, int]:
        """Return the file descriptor of a tensor's file, valid until `close`, and the offset of its bytes. Raises as `data`."""
        part, offset = self._locate(name)
        return part.file.fileno(), offset

    def unreadable(self, name: str, why: str) -> ModelFileError:
        """The error of a tensor that was there when the file was opened."""
        return ModelFileError(
            f"{self.path}: the tensor {quote(name)} cannot be read any more: {why}; "
            f"let whatever writes the file finish, and load it again"
        )

    def _locate(self, name: str) -> tuple[_Part, int]:
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: the tensor {quote(name)} is missing")
        if name not in self._location:
            raise ValueError(f"{self.path} is closed")
        return self._location[name]

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


def _part_paths(path: Path) -> tuple[Path, ...]:
    """All parts of the model that `path` belongs to, in order."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= _MAX_PARTS:
        raise ModelFileError(f"{path}: the name says part {match['number']} of {count} (limit {_MAX_PARTS})")
    paths = tuple(path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1))
    missing = [part.name for part in paths if part != path and not part.exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ModelFileError(f"{path}: {len(missing)} of {count} parts are missing beside it: {shown}")
    return paths


def _open_part(path: Path) -> _Part:
    try:
        # Looked at before it is opened: opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelFileError(f"{path} is not a regular file; give the path of a .gguf file")
        file = path.open("rb")
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        if not file.read(1):
            raise ModelFileError(f"{path}: the file is empty; download it again")
        mapping = mmap(file.fileno(), 0, access=ACCESS_READ)
        return _Part(file, mapping, parse_header(mapping, str(path)))
    except OSError as error:
        file.close()
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    except BaseException:
        file.close()
        raise


def _check_parts(paths: tuple[Path, ...], headers: list[Header]) -> None:
    """The parts are the parts of one model, all of them, in order."""
    owner: dict[str, Path] = {}
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        # A file in one piece may lack these keys, or say that it is part 0 of 0.
        whole = len(paths) == 1
        _check_split_key(path, header, "split.count", {len(paths), 0, None} if whole else {len(paths)})
        _check_split_key(path, header, "split.no", {0, None} if whole else {index})
        for name in header.tensors:
            if name in owner:
                raise ModelFileError(f"tensor {quote(name)} is in two parts: {owner[name]} and {path}")
            owner[name] = path
    _check_split_key(paths[0], headers[0], "split.tensors.count", {len(owner), None})


def _check_split_key(path: Path, header: Header, key: str, expected: set[int | None]) -> None:
    value = header.metadata.get(key)
    if not isinstance(value, int | None) or value not in expected:
        wanted = " or ".join("absent" if good is None else str(good) for good in sorted(expected, key=str))
        raise ModelFileError(
            f"{path}: metadata key {quote(key)} is {describe(value)}, but by the names and tensors of the "
            f"parts it must be {wanted}; give the parts their original names (NAME-00001-of-0000N.gguf)"
        )
