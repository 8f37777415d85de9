"""`rm`: delete what `pull` has fetched, and nothing else."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from hotloop.errors import ModelNotFoundError
from hotloop.weights import cache, discover
from hotloop.weights.catalog import catalog
from hotloop.weights.model_folder import NOTE, is_pulled, pulled_mark, read_note
from hotloop.weights.pull import lock_name
from hotloop.weights.reference import HubReference, parse_reference, split_parts
from hotloop.weights.resolve import locate, pulled_path
from hotloop.weights.transfer import Reporter, SilentReporter, disk_errors, partial_paths


def remove(model: str, reporter: Reporter | None = None) -> int:
    """Delete MODEL's files in hotloop's folder, unfinished ones included; the number of bytes that this freed.

    A repository stands for what pulls say they have put there; a file that is named itself goes whoever put it there.

    Raises ModelNotFoundError for a model that is not there, naming who has it where another program does, or which file
    is to be named; DownloadError where the folder cannot be written.
    """
    report = reporter or SilentReporter()
    root = cache.models_dir().resolve()
    with cache.lock(lock_name(model), lambda: report.note(f"waiting for a pull of {model}")):
        # A link is removed, not what it points to; behind a link to a folder everything is somebody else's.
        named = dict.fromkeys(path.parent.resolve() / path.name for path in _paths(model))
        paths = [path for path in named if path.is_file() and root in path.parents]
        if not paths:
            raise ModelNotFoundError(_not_ours(model))
        freed = sum(path.lstat().st_size for path in paths)
        with disk_errors(root):
            for path in paths:
                path.unlink()
            for folder in {parent for path in paths for parent in path.parents if root in parent.parents}:
                if folder.is_dir() and all(_is_folder(p) for p in folder.rglob("*")):
                    shutil.rmtree(folder)
    return freed


def _paths(model: str) -> Iterator[Path]:
    """Files of hotloop's folder that MODEL may consist of, whether they are there or not."""
    if (entry := catalog().get(model.lower())) is not None:
        yield from _with_partial(cache.models_dir() / entry.file)
        return
    reference = parse_reference(model)
    if isinstance(reference, HubReference):
        folder = pulled_path(reference, ".")
        if reference.file is None:
            yield from _whole_repository(model, folder)
        else:
            yield from _parts(folder / reference.file)
    elif reference is None and (path := locate(model)) is not None:
        path = path.absolute()
        yield from _noted_files(path) if path.is_dir() else _parts(path)


def _whole_repository(model: str, folder: Path) -> Iterator[Path]:
    """What pulls say they have put into a repository's folder, a model folder or one GGUF file; and what is unfinished."""
    noted = list(_noted_files(folder))
    files = [] if noted else [path for path in folder.rglob("*.gguf") if is_pulled(path)]
    if len(firsts := _firsts(folder, files)) > 1:
        raise ModelNotFoundError(
            f"{model}: name one of the {len(firsts)} files that were pulled from there:{_listing(model, firsts)}"
        )
    yield from noted
    yield from (path for file in files for path in _with_partial(file))
    yield from (path for ending in partial_paths(Path("*")) for path in folder.rglob(ending.name))


def _noted_files(folder: Path) -> Iterator[Path]:
    """Files that the pull of a model folder has fetched or begun; none in a folder of another origin."""
    if (note := read_note(folder)) is not None:
        for name in note.files:
            yield from _with_partial(folder / name)
        yield folder / NOTE


def _parts(file: Path) -> Iterator[Path]:
    for part in split_parts(file.name):
        yield from _with_partial(file.with_name(part))


def _with_partial(path: Path) -> Iterator[Path]:
    yield from (path, *partial_paths(path), pulled_mark(path))


def _firsts(folder: Path, files: Iterable[Path]) -> list[str]:
    """The models in files below a folder, as names there: of split ones the first part."""
    return sorted({split_parts(path.relative_to(folder).as_posix())[0] for path in files})


def _listing(model: str, files: Iterable[str]) -> str:
    return "".join(f"\n  {model}/{file}" for file in files)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _not_ours(model: str) -> str:
    reference = parse_reference(model) if model.lower() not in catalog() else None
    if isinstance(reference, HubReference) and reference.file is None:
        folder = pulled_path(reference, ".")
        if files := _firsts(folder, folder.rglob("*.gguf")):
            return f"{model}: no pull says that it put these files there; name the one to delete:{_listing(model, files)}"
    path = locate(model)
    if path is None:
        return f"{model} is not on this machine: `hotloop list` shows what is"
    owner = next((m.where for m in discover.discover() if m.path == path), None)
    whose = f"in the {owner}" if owner and cache.models_dir() not in path.parents else "no file that hotloop has pulled"
    return f"{model} is {whose} ({path}), and hotloop removes only what it has pulled itself: delete it there"
