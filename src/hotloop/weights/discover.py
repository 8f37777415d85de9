"""Model files and folders that lie on this machine: hotloop's own, the Hugging Face cache, Ollama's, llama.cpp's."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotloop.errors import ModelNotFoundError
from hotloop.weights import cache
from hotloop.weights.catalog import catalog
from hotloop.weights.model_folder import folder_bytes, is_model_folder
from hotloop.weights.reference import (
    REVISION_SLASH,
    SPLIT_FILE,
    HubReference,
    OllamaReference,
    parse_reference,
    split_parts,
)

_OLLAMA_MODEL_LAYER = "application/vnd.ollama.image.model"
_MAX_CONFIG_BYTES = 1 << 20
_WRITES_TEXT = re.compile("CausalLM|LMHeadModel|Gemma3ForConditionalGeneration")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A GGUF file or a model folder on this machine. `model` is what to write as a MODEL argument; bytes sums all parts."""

    model: str
    path: Path
    bytes: int
    where: str


def discover() -> list[FoundModel]:
    """Every model file found, hotloop's own first; a file that is reachable in two ways is listed once."""
    found: dict[Path, FoundModel] = {}
    for scan in (scan_own, scan_hugging_face, scan_ollama, scan_llama_cpp):
        for model in scan():
            found.setdefault(model.path.resolve(), model)
    return list(found.values())


def scan_own() -> Iterator[FoundModel]:
    """Models that `hotloop pull` fetched."""
    root = cache.models_dir()
    names = {entry.file: entry.name for entry in catalog().values()}
    for path in _gguf_files(root):
        relative = path.relative_to(root)
        if len(relative.parts) < 3:
            yield _found(names.get(str(relative), str(path)), path, "hotloop")
        else:
            reference = _own_reference(relative.parts[0], relative.parts[1], "/".join(relative.parts[2:]))
            yield _found(_argument(reference, path), path, "hotloop")
    for owner in _subfolders(root):
        for folder in _subfolders(owner):
            if is_model_folder(folder):
                yield _found_folder(_argument(_own_reference(owner.name, folder.name), folder), folder, "hotloop")


def _own_reference(owner: str, folder: str, file: str | None = None) -> HubReference:
    repo, _, revision = folder.partition("@")
    return HubReference(f"{owner}/{repo}", file, revision.replace(REVISION_SLASH, "/") or None)


def _argument(reference: HubReference, path: Path) -> str:
    """What to write as MODEL: the path where names of folders and files are such that they spell no reference."""
    try:
        return str(reference) if parse_reference(str(reference)) == reference else str(path)
    except ModelNotFoundError:
        return str(path)


def hugging_face_cache() -> Path:
    """The hub cache of the Hugging Face libraries, from the environment they read."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if configured := os.environ.get(variable):
            return Path(configured).expanduser()
    if configured := os.environ.get("HF_HOME"):
        return Path(configured).expanduser() / "hub"
    return _xdg_cache() / "huggingface" / "hub"


def scan_hugging_face() -> Iterator[FoundModel]:
    """Files in the Hugging Face cache; of several revisions the one that `main` names comes first."""
    for folder in _subfolders(hugging_face_cache()):
        parts = folder.name.split("--")
        if len(parts) != 3 or parts[0] != "models":
            continue
        main = _read_text(folder / "refs" / "main")
        seen: set[str] = set()
        snapshots = _subfolders(folder / "snapshots")
        snapshots.sort(key=lambda s: (s.name != main, -s.stat().st_mtime))
        for snapshot in snapshots:
            for path in _gguf_files(snapshot):
                file = path.relative_to(snapshot).as_posix()
                # A file that is in the main revision too is listed as that; others carry their revision.
                revision = snapshot.name if file in seen else None
                seen.add(file)
                reference = HubReference(f"{parts[1]}/{parts[2]}", file, revision)
                yield _found(_argument(reference, path), path, "Hugging Face cache")
            if _is_language_model(snapshot):
                revision = snapshot.name if "" in seen else None
                seen.add("")
                reference = HubReference(f"{parts[1]}/{parts[2]}", None, revision)
                yield _found_folder(str(reference), snapshot, "Hugging Face cache")


def scan_ollama() -> Iterator[FoundModel]:
    """Models in Ollama's store: the model layer of every manifest that is a GGUF blob."""
    for root in _ollama_stores():
        manifests = root / "manifests"
        for manifest in sorted(p for p in _walk(manifests) if p.is_file()):
            parts = manifest.relative_to(manifests).parts
            digest = _model_digest(manifest)
            if len(parts) < 3 or digest is None:
                continue
            blob = root / "blobs" / f"sha256-{digest}"
            if _is_gguf(blob):
                yield _found(str(OllamaReference(_ollama_name(parts[:-1]), parts[-1])), blob, "Ollama")


def scan_llama_cpp() -> Iterator[FoundModel]:
    """Files in llama.cpp's download cache."""
    if configured := os.environ.get("LLAMA_CACHE"):
        root = Path(configured).expanduser()
    else:
        root = _xdg_cache() / "llama.cpp"
    for path in _gguf_files(root):
        yield _found(str(path), path, "llama.cpp cache")


def _ollama_stores() -> list[Path]:
    if configured := os.environ.get("OLLAMA_MODELS"):
        return [Path(configured).expanduser()]
    # The second is where the Linux service, which runs as a user of its own, keeps them.
    return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def _ollama_name(parts: tuple[str, ...]) -> str:
    """Ollama's name for manifests/<host>/<namespace>/<name>: its own registry and library are implied."""
    if parts[0].startswith("registry."):
        parts = parts[1:]
    if parts[0] == "library" and len(parts) > 1:
        parts = parts[1:]
    return "/".join(parts)


def _model_digest(manifest: Path) -> str | None:
    try:
        layers = json.loads(manifest.read_text())["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a manifest
    match = _DIGEST.fullmatch(digests[0]) if digests else None
    return match[1] if match else None


def _found(model: str, path: Path, where: str) -> FoundModel:
    parts = [path.with_name(name) for name in split_parts(path.name)]
    return FoundModel(model, path, sum(part.stat().st_size for part in parts if part.exists()), where)


def _found_folder(model: str, path: Path, where: str) -> FoundModel:
    return FoundModel(model, path, folder_bytes(path), where)


def _is_language_model(folder: Path) -> bool:
    """Whether a model folder says that its model writes text: the cache holds models of all kinds."""
    try:
        with open(folder / "config.json", "rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
        return bool(_WRITES_TEXT.search(str(config["architectures"]))) and is_model_folder(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _gguf_files(root: Path) -> Iterator[Path]:
    """GGUF language models below root, sorted; of a split model the first part, and only if all are there."""
    for path in sorted(_walk(root)):
        if not path.name.endswith(".gguf") or "mmproj" in path.name.lower() or not _is_gguf(path):
            continue
        split = SPLIT_FILE.fullmatch(path.name)
        if split is None or (
            int(split["part"]) == 1 and all(path.with_name(n).exists() for n in split_parts(path.name))
        ):
            yield path


def _walk(root: Path) -> Iterator[Path]:
    """Files below root, without hidden or unreadable folders; links to folders are not followed."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [s for s in subfolders if not s.startswith(".")]
        yield from (Path(folder, name) for name in files)


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        return []


def _is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def _xdg_cache() -> Path:
    if configured := os.environ.get("XDG_CACHE_HOME"):
        return Path(configured).expanduser()
    return Path.home() / ".cache"
