"""Open a GGUF model, whole or in parts, as memory-mapped, bounds-checked tensors and typed metadata."""

import re
import stat
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.weights.gguf_header import Header, parse_header
from hotloop.weights.model_file import ModelFile, describe, quote, read_at

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class _Part:
    """One file: open, mapped, parsed."""

    file: BinaryIO
    mapping: mmap
    header: Header


class GGUFFile(ModelFile):
    """A GGUF model, opened through its file or through any part of a split one.

    paths: every part, in order. version, metadata: of the first part; numeric arrays have the dtype of the file.
    tensors: of all parts.

    `data` maps a tensor: for those who look here and there. `read` copies one and `location` tells where it lies: for
    those who want all of it, without pages of the mapping in their memory, and safe from a file that is truncated meanwhile.
    Views stay valid after `close`: a mapping is released together with its last view.
    """

    def __init__(self, path: Path, paths: tuple[Path, ...], parts: list[_Part]) -> None:
        """Use `GGUFFile.open`."""
        super().__init__(
            path,
            paths,
            parts[0].header.metadata,
            {name: tensor for part in parts for name, tensor in part.header.tensors.items()},
            sum(len(part.mapping) for part in parts),
        )
        self.version = parts[0].header.version
        self._number_types = parts[0].header.number_types
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
        parts: list[_Part] = []
        try:
            for part_path in paths:
                parts.append(_open_part(part_path))
            _check_parts(paths, [part.header for part in parts])
        except BaseException:
            for part in parts:
                part.file.close()
            raise
        return cls(path, paths, parts)

    def number_type(self, key: str) -> np.dtype[Any] | None:
        return self._number_types.get(key)

    def close(self) -> None:
        """Let go of the files; views handed out before keep their mapping alive."""
        self._location = {}
        for file in self._files:
            file.close()

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

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        fd, offset = self.location(name)
        row_bytes = self.tensors[name].row_bytes
        try:
            return read_at(fd, offset + start * row_bytes, (stop - start) * row_bytes)
        except OSError as error:
            raise self.unreadable(name, str(error.strerror)) from None
        except EOFError as error:
            raise self.unreadable(name, str(error)) from None

    def location(self, name: str) -> tuple[int, int]:
        part, offset = self._locate(name)
        return part.file.fileno(), offset

    def _locate(self, name: str) -> tuple[_Part, int]:
        self.info(name)
        if name not in self._location:
            raise ValueError(f"{self.path} is closed")
        return self._location[name]


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
