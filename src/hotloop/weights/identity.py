"""model_identity: which model lies at a path, as of now, told from its files' entries alone."""

from pathlib import Path

from hotloop.weights.reference import split_parts

_ENDINGS = (".json", ".jinja", ".model", "merges.txt", ".safetensors")  # of what a model folder is read from

Identity = tuple[tuple[str, int, int, int, int] | str, ...]


def model_identity(path: Path) -> Identity:
    """Name, device, inode, size and time of change of every file: all parts of a split model, all that a folder is read from.

    Two that are equal are of one model; a file that is written in place, replaced, added or taken away makes another. What else
    lies in a folder does not matter. Reads no file, so it takes no time. A file that cannot be looked at counts as none.
    """
    return tuple(_entry(file) for file in _files(path))


def _files(path: Path) -> list[Path]:
    try:
        return sorted(p for p in path.iterdir() if p.name.endswith(_ENDINGS) and not p.name.startswith("."))
    except OSError:  # no folder
        return [path.with_name(part) for part in split_parts(path.name)]


def _entry(file: Path) -> tuple[str, int, int, int, int] | str:
    try:
        status = file.stat()
    except OSError:
        return file.name
    return file.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
