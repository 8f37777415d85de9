"""hotloop's folder on this machine: where models lie, locks between processes, and remembered checksums."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop.errors import DownloadError


def home() -> Path:
    """$HOTLOOP_HOME, or the platform's cache folder for hotloop."""
    if configured := os.environ.get("HOTLOOP_HOME"):
        return Path(configured).expanduser().absolute()
    from platformdirs import user_cache_path  # the import is needed on this path only

    return user_cache_path("hotloop")


def models_dir() -> Path:
    """The folder of pulled models."""
    return home() / "models"


@contextlib.contextmanager
def lock(name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the machine-wide lock `name`; calls on_wait once if another process holds it.

    The kernel drops the lock when its holder dies. The empty lock file stays: deleting it would let two
    processes lock two different files of one name.

    Raises DownloadError when the lock folder cannot be written.
    """
    folder = home() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / _lock_file(name), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DownloadError(
            f"cannot write to {folder} ({error.strerror}): set HOTLOOP_HOME to a folder that you may write to"
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock_file(name: str) -> str:
    """A file's name, also where the lock's, say a path, is too long for one."""
    plain = re.sub(r"[^\w.@-]+", "--", name)
    if len(plain.encode()) > 200:
        plain = hashlib.sha256(os.fsencode(name)).hexdigest()
    return plain + ".lock"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path) -> str:
    """SHA-256 of a file, computed once per (real path, size, modification time) and remembered."""
    real = path.resolve()
    stat = real.stat()
    key, stamp = str(real), [stat.st_size, stat.st_mtime_ns]
    store = home() / "checksums.json"
    try:
        known = json.loads(store.read_text())
        assert isinstance(known, dict)
    except (OSError, ValueError, AssertionError):
        known = {}
    entry = known.get(key)
    if isinstance(entry, dict) and entry.get("stamp") == stamp and isinstance(entry.get("sha256"), str):
        return str(entry["sha256"])
    digest = file_sha256(real)
    known[key] = {"stamp": stamp, "sha256": digest}
    with contextlib.suppress(OSError):  # a memory that cannot be written costs time only
        store.parent.mkdir(parents=True, exist_ok=True)
        scratch = store.with_name(f"{store.name}.{os.getpid()}")
        scratch.write_text(json.dumps(known, indent=1))
        scratch.replace(store)
    return digest
