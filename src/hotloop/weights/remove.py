"""`rm`: delete what `pull` has fetched, and nothing else."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from hotloop.errors import ModelNotFoundError
from hotloop.weights import cache, discover
from hotloop.weights.catalog import catalog
from hotloop.weights.pull import lock_name
from hotloop.weights.reference import HubReference, parse_reference, split_parts
from hotloop.weights.resolve import locate, pulled_path
from hotloop.weights.transfer import Reporter, SilentReporter, disk_errors, partial_paths


def remove(model: str, reporter: Reporter | None = None) -> int:
    """Delete MODEL's files in hotloop's folder, unfinished ones included; the number of bytes that this freed.

    Raises ModelNotFoundError for a model that is not there, naming who has it where another program does, or which file
    is to be named; DownloadError where the folder cannot be written.
    """
    report = reporter or SilentReporter()
    root = cache.models_dir().resolve()
    with cache.lock(lock_name(model), lambda: report.note(f"waiting for a pull of {model}")):
        named = (
            path.parent.resolve() / path.name for path in _paths(model)
        )  # a link is removed, not what it points to
        paths = [path for path in named if path.exists() and root in path.parents]
        if not paths:
            raise ModelNotFoundError(_not_ours(model))
        freed = sum(map(_bytes, paths))
        with disk_errors(root):
            for path in paths:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for folder in {parent for path in paths for parent in path.parents if root in parent.parents}:
                if folder.is_dir() and not any(p.is_file() for p in folder.rglob("*")):
                    shutil.rmtree(folder)
    return freed


def _paths(model: str) -> Iterator[Path]:
    """Files of hotloop's folder that MODEL may consist of, whether they are there or not, or its one folder."""
    if (entry := catalog().get(model.lower())) is not None:
        yield from _with_partial(cache.models_dir() / entry.file)
        return
    reference = parse_reference(model)
    if isinstance(reference, HubReference):
        folder = pulled_path(reference, ".")
        if reference.file is None:
            yield from _whole_repository(model, folder)
            return
        for part in split_parts(reference.file):
            yield from _with_partial(folder / part)
    elif reference is None and (path := locate(model)) is not None:
        yield from _with_partial(path.absolute())


def _whole_repository(model: str, folder: Path) -> Iterator[Path]:
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf"))
    firsts = sorted({split_parts(file)[0] for file in files})
    if len(firsts) > 1:
        listing = "".join(f"\n  {model}/{file}" for file in firsts)
        raise ModelNotFoundError(f"{model}: name one of the {len(firsts)} files that were pulled from there:{listing}")
    yield folder


def _with_partial(path: Path) -> Iterator[Path]:
    yield from (path, *partial_paths(path))


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _not_ours(model: str) -> str:
    path = locate(model)
    if path is None:
        return f"{model} is not on this machine: `hotloop list` shows what is"
    owner = next((m.where for m in discover.discover() if m.path == path), None)
    whose = f"in the {owner}" if owner else "no file that hotloop has pulled"
    return f"{model} is {whose} ({path}), and hotloop removes only what it has pulled itself: delete it there"
