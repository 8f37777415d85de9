"""What a MODEL argument can be: a catalog name, a path, a hub reference, or a model in Ollama's store."""

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from hotloop.errors import ModelNotFoundError

_HUB = re.compile(
    r"hf:(?P<owner>[A-Za-z0-9][\w.-]*)/(?P<repo>[A-Za-z0-9][\w.-]*)(?:@(?P<revision>refs/[a-z]+/\d+|[\w.-]+))?(?:/(?P<file>.+))?"
)
_OLLAMA = re.compile(r"ollama:(?P<name>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)*)(?::(?P<tag>[\w.-]+))?")

_MAX_PART_BYTES = 200  # of a file's name, to which pulls add endings; file systems take 255

REVISION_SLASH = "--"  # stands for the slashes of a revision in names of folders

SPLIT_FILE = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")

# Tried in this order when a repository holds several files: small first, all of them fast on this engine.
_QUANTIZATIONS = ("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class HubReference:
    """hf:owner/repo[@revision][/file]; without a file the repository's best match is taken."""

    repo: str
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{revision}" + (f"/{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class OllamaReference:
    """ollama:name[:tag], a model that Ollama has pulled on this machine."""

    name: str
    tag: str = "latest"

    def __str__(self) -> str:
        return f"ollama:{self.name}:{self.tag}"


def parse_reference(model: str) -> HubReference | OllamaReference | None:
    """The reference that MODEL spells, or None for a catalog name or a path.

    Raises ModelNotFoundError for a text that starts like a reference and is none.
    """
    if model.startswith("hf:"):
        match = _HUB.fullmatch(model)
        file = None if match is None else match["file"]
        if match is None or not (file is None or (file.endswith(".gguf") and stays_inside(file))):
            raise ModelNotFoundError(f"{model!r:.200} is no hub reference: write hf:owner/repo[@revision][/file.gguf]")
        if any(len(os.fsencode(part)) > _MAX_PART_BYTES for part in model.split("/")):
            raise ModelNotFoundError(f"{model!r:.200} is no hub reference: a name in it has over {_MAX_PART_BYTES} bytes")
        return HubReference(f"{match['owner']}/{match['repo']}", file, match["revision"])
    if model.startswith("ollama:"):
        match = _OLLAMA.fullmatch(model)
        if match is None:
            raise ModelNotFoundError(f"{model!r} is no Ollama model: write ollama:name or ollama:name:tag")
        return OllamaReference(match["name"], match["tag"] or "latest")
    return None


def stays_inside(file: str) -> bool:
    """Whether the path of a repository's file leads nowhere else on this machine."""
    return ".." not in PurePosixPath(file).parts and not file.startswith("/") and "\\" not in file and "\0" not in file


def choose_file(files: list[str]) -> str | None:
    """The file that a reference without one means: the only one, or one of the common 4-bit types.

    Split files count by their first part; projector files (mmproj) are no language models.
    """
    candidates = sorted(f for f in files if f.endswith(".gguf") and not _is_side_file(f))
    if len(candidates) == 1:
        return candidates[0]
    for quantization in _QUANTIZATIONS:
        pattern = re.compile(rf"(?:^|[-._/]){quantization}(?:[-._/]|$)", re.IGNORECASE)
        if match := next((f for f in candidates if pattern.search(f)), None):
            return match
    return None


def _is_side_file(file: str) -> bool:
    name = PurePosixPath(file).name
    split = SPLIT_FILE.fullmatch(name)
    return "mmproj" in name.lower() or (split is not None and int(split["part"]) != 1)


def split_parts(file: str) -> list[str]:
    """All files of a split model from the name of one, in order; [file] if it is not split."""
    match = SPLIT_FILE.fullmatch(file)
    if match is None:
        return [file]
    count = int(match["count"])
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
