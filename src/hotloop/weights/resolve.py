"""From a MODEL argument to a file or folder on this machine, the same way for every command and for `LLM`."""

import difflib
import os
from pathlib import Path

from hotloop.errors import ModelNotFoundError
from hotloop.weights import cache, discover
from hotloop.weights.catalog import DEFAULT_MODEL, CatalogEntry, catalog
from hotloop.weights.model_folder import is_model_folder
from hotloop.weights.reference import (
    REVISION_SLASH,
    HubReference,
    OllamaReference,
    choose_file,
    parse_reference,
    split_parts,
)

FOLDER_CONFIG = "config.json"
"""What makes a folder a model's."""


class NotPulledError(ModelNotFoundError):
    """MODEL is known but not on this machine: `hotloop pull` fetches it."""


def resolve(model: str) -> Path:
    """The file that MODEL means, or the folder: a catalog name, a path, hf:owner/repo[@revision][/file], ollama:name[:tag].

    A path may be that of a Hugging Face folder (one with config.json), which comes back absolute. A catalog name wins over
    a file of that name (write ./name for the file). Nothing is downloaded.

    Raises NotPulledError for a known model that is not here, ModelNotFoundError for anything else.
    """
    if (path := locate(model)) is not None:
        return path
    if model.lower() in catalog() or isinstance(parse_reference(model), HubReference):
        raise NotPulledError(f"{model} is not on this machine: `hotloop pull {model}` fetches it")
    if isinstance(parse_reference(model), OllamaReference):
        raise ModelNotFoundError(f"{model} is not in Ollama's store here; `hotloop list` shows what is")
    raise ModelNotFoundError(_not_found(model))


def locate(model: str) -> Path | None:
    """Like `resolve`, but None where nothing is found.

    Raises ModelNotFoundError for a text that starts like a reference and is none.
    """
    if (entry := catalog().get(model.lower())) is not None:
        return _locate_entry(entry)
    match parse_reference(model):
        case HubReference() as reference:
            return _locate_hub(reference)
        case OllamaReference() as reference:
            return next((m.path for m in discover.scan_ollama() if m.model == str(reference)), None)
    path = Path(os.path.expanduser(model))
    # Not path.is_file(): it raises for a text that is too long for a name, say a question in MODEL's place.
    if os.path.isfile(path):
        return path
    return Path(os.path.abspath(path)) if os.path.isfile(path / FOLDER_CONFIG) else None


def pulled_path(reference: HubReference, file: str) -> Path:
    """Where `pull` puts a file of a hub repository."""
    revision = "@" + reference.revision.replace("/", REVISION_SLASH) if reference.revision else ""
    return cache.models_dir() / (reference.repo + revision) / file


def _locate_entry(entry: CatalogEntry) -> Path | None:
    own = cache.models_dir() / entry.file
    if own.is_file():
        return own
    if (path := _locate_hub(HubReference(entry.hub.repo, entry.hub.file))) is not None:
        return path
    if entry.sha256 is None:
        return None
    for found in discover.discover():
        # Size first: hashing every file on the machine would take minutes.
        if found.path.stat().st_size == entry.bytes and cache.remembered_sha256(found.path) == entry.sha256:
            return found.path
    return None


def _locate_hub(reference: HubReference) -> Path | None:
    """The reference's file, or its model folder, in hotloop's folder or the Hugging Face cache."""
    for folder in (pulled_path(reference, "."), *_snapshots(reference)):
        if reference.file is not None:
            file: str | None = reference.file
        else:
            file = choose_file([p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf")])
        if file is not None and all((folder / part).is_file() for part in split_parts(file)):
            return folder / file
        if reference.file is None and is_model_folder(folder):
            return folder
    return None


def _snapshots(reference: HubReference) -> list[Path]:
    """Folders of the repository in the Hugging Face cache: of the revision asked for, else main's first."""
    folder = discover.hugging_face_cache() / ("models--" + reference.repo.replace("/", "--"))
    revision = reference.revision or "main"
    try:
        named = (folder / "refs" / revision).read_text().strip()
    except OSError:
        named = revision
    snapshots = [folder / "snapshots" / named]
    if reference.revision is None:
        others = (folder / "snapshots").glob("*")
        snapshots += sorted((s for s in others if s.name != named), key=lambda s: -s.stat().st_mtime)
    return [s for s in snapshots if s.is_dir()]


def _not_found(model: str) -> str:
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            return f"{model} is a folder that you may not read: change its permissions, or ask its owner"
        files = sorted(p.name for p in path.glob("*.gguf"))[:5]
        if files:
            return f"{model} is a folder: name a .gguf file in it ({', '.join(files)})"
        return f"{model} is a folder without {FOLDER_CONFIG}: give a Hugging Face folder that has one, or a .gguf file"
    if model.endswith(".gguf") or model.startswith((".", "~", "/")):
        return f"{model}: no such file; `hotloop list` shows the models on this machine"
    known = list(dict.fromkeys([*catalog(), *(m.model for m in discover.discover())]))
    shown = repr(model if len(model) <= 80 else model[:77] + "...")
    near = difflib.get_close_matches(model.lower(), known, n=3, cutoff=0.6)
    parts_of = [name for name in known if model and model.lower() in name.lower() and name not in near]
    near += parts_of[: 3 - len(near)]
    if near:
        return f"no model {shown}: did you mean {' or '.join(near)}? `hotloop pull {near[0]}` gets the first"
    return (
        f"no model {shown}: a MODEL is a catalog name (`hotloop list --catalog`), the path of a .gguf "
        f"file or of a Hugging Face folder, hf:owner/repo[/file] or ollama:name[:tag]; `hotloop pull {DEFAULT_MODEL}` "
        f"fetches a small one"
    )
