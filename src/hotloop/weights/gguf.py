"""Open a GGUF model, whole or in parts, as memory-mapped, bounds-checked tensors and typed metadata."""

import mmap as mmap_module
import re
import stat
from collections.abc import Mapping
from enum import Enum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

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


class GGUFFile:
    """A GGUF model, opened through its file or through any part of a split one.

    path: as given. paths: every part, in order.
    version, metadata: of the first part. Scalars are Python values, string arrays list[str], numeric arrays
    read-only numpy arrays in the dtype of the file.
    tensors: of all parts.
    nbytes: total size of the files.

    Tensor views stay valid after `close`: a mapping is released together with its last view. The file must
    not be truncated while it is mapped.
    """

    def __init__(self, path: Path, paths: tuple[Path, ...], parts: list[tuple[mmap, Header]]) -> None:
        """Use `GGUFFile.open`."""
        self.path = path
        self.paths = paths
        self.version = parts[0][1].version
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(dict(parts[0][1].metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: tensor for _, header in parts for name, tensor in header.tensors.items()}
        )
        self.nbytes = sum(len(mapping) for mapping, _ in parts)
        self._location = {
            name: (mapping, offset) for mapping, header in parts for name, offset in header.offsets.items()
        }

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map the model at `path` and parse its header.

        Raises: ModelNotFoundError if there is no such file; ModelFileError naming the file and the key or
        tensor at fault if it is not a well-formed little-endian GGUF file of version 2 or 3.
        """
        path = Path(path)
        paths = _part_paths(path)
        parts = [_open_part(part) for part in paths]
        _check_parts(paths, [header for _, header in parts])
        return cls(path, paths, parts)

    def close(self) -> None:
        """Let go of the files; views handed out before keep their mapping alive."""
        self._location = {}

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
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.path}: the tensor {quote(name)} is missing")
        if name not in self._location:
            raise ValueError(f"{self.path} is closed")
        mapping, offset = self._location[name]
        if mapping.size() < len(mapping):  # touching what is gone would end the process
            raise ModelFileError(
                f"{self.path}: the file shrank to {mapping.size()} bytes since it was opened; "
                f"let whatever writes it finish, and load it again"
            )
        return np.frombuffer(mapping, np.uint8, count=tensor.nbytes, offset=offset)

    def release(self, name: str) -> None:
        """Let the kernel drop the tensor's pages from this process; reading it again maps them anew."""
        if name not in self._location or not hasattr(mmap_module, "MADV_DONTNEED"):
            return
        mapping, offset = self._location[name]
        page = mmap_module.PAGESIZE
        begin, end = -(-offset // page) * page, (offset + self.tensors[name].nbytes) // page * page
        if end > begin:
            mapping.madvise(mmap_module.MADV_DONTNEED, begin, end - begin)

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


def _open_part(path: Path) -> tuple[mmap, Header]:
    try:
        # Looked at before it is opened: opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelFileError(f"{path} is not a regular file; give the path of a .gguf file")
        with path.open("rb") as file:
            if not file.read(1):
                raise ModelFileError(f"{path}: the file is empty; download it again")
            mapping = mmap(file.fileno(), 0, access=ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    return mapping, parse_header(mapping, str(path))


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
