"""Write a model file as one GGUF file: streamed, complete or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hotloop.errors import InvalidRequestError
from hotloop.weights.gguf_writer import WritableValue, gguf_header, padded
from hotloop.weights.model_file import ModelFile, TensorInfo
from hotloop.weights.reference import split_parts

_CHUNK_BYTES = 8 << 20  # of a tensor, in memory at a time
_SPARE_BYTES = 64 << 20  # left free on the disk
_NOT_OF_ONE_FILE = ("split.", "general.alignment")  # metadata about the parts and the layout of the source


def write_model(model: ModelFile, target: Path, *, overwrite: bool = False) -> int:
    """Write all metadata and tensors of a model to `target`, a GGUF file. Returns its size in bytes.

    The file appears under its name once it is complete and on the disk; whatever ends the writing before leaves
    nothing behind, but for a kill of the process (`.NAME.PID.partial`): the next writing of that target removes it.
    Memory: some megabytes.

    Raises: InvalidRequestError if the target cannot be written: it exists (unless `overwrite`), is one of the model's own
    files, is named like a part of a split model, there is no such folder, or no space. ModelFileError as the model's
    `read_rows`.
    """
    try:
        _check_target(model, target, overwrite)
        tensors = {info.name: (info.format, info.shape) for info in model.tensors.values()}
        header = gguf_header(writable_metadata(model), tensors)
        nbytes = len(header) + sum(padded(info.nbytes) for info in model.tensors.values())
        _remove_leftovers(target)
        free = shutil.disk_usage(target.parent).free
        if free < nbytes + _SPARE_BYTES:
            raise InvalidRequestError(
                f"{target}: {nbytes:,} bytes are needed and {free:,} are free on that disk; free some"
            )
        with _partial_file(target, overwrite) as file:
            file.write(header)
            for info in model.tensors.values():
                _write_tensor(file, model, info)
    except OSError as error:
        mend = "free some" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another place"
        raise InvalidRequestError(f"{target} cannot be written: {error.strerror}; {mend}") from None
    return nbytes


def writable_metadata(model: ModelFile) -> dict[str, WritableValue]:
    """The metadata as a single file's, numbers in the types that they have in the model's file."""
    metadata: dict[str, WritableValue] = {}
    for key, value in model.metadata.items():
        if key.startswith(_NOT_OF_ONE_FILE):
            continue
        number_type = model.number_type(key)
        metadata[key] = value if number_type is None else np.array(value, number_type)[()]
    return metadata


def _check_target(model: ModelFile, target: Path, overwrite: bool) -> None:
    if target.is_dir():
        raise InvalidRequestError(f"{target} is a folder; give the name of a file in it")
    if not target.parent.is_dir():
        raise InvalidRequestError(f"{target}: there is no folder {target.parent}; make it first")
    if len(parts := split_parts(target.name)) > 1:
        raise InvalidRequestError(f"{target}: that is the name of one of {len(parts)} parts, and the result is one file")
    if target.is_symlink() or target.exists():
        if target.exists() and not target.is_file():
            raise InvalidRequestError(f"{target} is no regular file; give another name")
        if target.exists() and any(target.samefile(path) for path in model.paths):
            raise InvalidRequestError(f"{target} is the model itself; give the result another name")
        if not overwrite:
            raise InvalidRequestError(f"{target} exists; give another name, or --force to replace it")


@contextlib.contextmanager
def _partial_file(target: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """A new file beside the target, which takes its place when the block ends well."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with _create_locked(partial) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if overwrite:
                partial.replace(target)
            else:
                _rename_to_new(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def _create_locked(partial: Path) -> BinaryIO:
    """A new file, locked as long as it is open: the lock tells it from what a killed process has left."""
    while True:
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # taken for a leftover in the moment before it was locked


def _remove_leftovers(target: Path) -> None:
    """Delete partial files of the target that nobody is writing any more."""
    name = re.compile(rf"\.{re.escape(target.name)}\.\d+\.partial")
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        for path in target.parent.iterdir():
            if name.fullmatch(path.name) and path.is_file():
                with contextlib.suppress(OSError), path.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


def _rename_to_new(partial: Path, target: Path) -> None:
    """Also when somebody else makes a file of that name meanwhile, theirs stays."""
    try:
        target.hardlink_to(partial)
    except FileExistsError:
        raise InvalidRequestError(
            f"{target} exists since a moment ago; give another name, or --force to replace it"
        ) from None
    except OSError:  # a file system without links
        partial.replace(target)


def _write_tensor(file: BinaryIO, model: ModelFile, info: TensorInfo) -> None:
    step = max(_CHUNK_BYTES // max(info.row_bytes, 1), 1)
    for start in range(0, info.num_rows, step):
        file.write(model.read_rows(info.name, start, min(start + step, info.num_rows)).data)
    file.write(bytes(padded(info.nbytes) - info.nbytes))
