"""Hugging Face model folders: which files make one, and the notes that pulls leave about what is theirs."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_OLDER = ("vocab.json", "merges.txt")  # read where there is none of those
_COMPANIONS = (
    _CONFIG, "quantize_config.json", "generation_config.json", *_TOKENIZERS, "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", *_OLDER,
)  # fmt: skip
_WHOLE = "model.safetensors"
_SHARD = re.compile(r"model-(?P<part>\d{5})-of-(?P<count>\d{5})\.safetensors")
NOTE = ".hotloop-pull.json"
"""What a pull leaves in a folder of its own: a PullNote."""


def companions(names: Collection[str]) -> list[str]:
    """Of a folder's files what a model's answers depend on, beside the weights."""
    unread = _OLDER if any(name in names for name in _TOKENIZERS) else ()
    return [name for name in _COMPANIONS if name in names and name not in unread]


def needed_files(names: Iterable[str]) -> list[str]:
    """What of a repository's files makes a model folder; nothing where they do not hold one.

    Only files at the top: folders in a repository hold the same model for other programs.
    """
    top = {name for name in names if "/" not in name}
    weights = weight_files(top)
    index = [_INDEX] if _INDEX in top else []
    return [*companions(top), *index, *weights] if weights and _CONFIG in top else []


def weight_files(names: Iterable[str]) -> list[str]:
    """The safetensors files of one model, in order; of a sharded one with a shard missing, none."""
    found = sorted(names)
    if _WHOLE in found:
        return [_WHOLE]
    shards = {name: match for name in found if (match := _SHARD.fullmatch(name))}
    if not shards:
        return []
    first = next(iter(shards.values()))
    wanted = [f"model-{i:05d}-of-{first['count']}.safetensors" for i in range(1, int(first["count"]) + 1)]
    return wanted if all(name in shards for name in wanted) else []


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a whole model: one that a pull has finished, where it is a pull's."""
    note = read_note(path)
    if note is not None:
        return note.is_complete(path)
    try:
        return bool(needed_files(entry.name for entry in path.iterdir()))
    except OSError:
        return False


def folder_bytes(path: Path) -> int:
    """Size of the files in a model folder."""
    return sum((path / name).stat().st_size for name in needed_files(entry.name for entry in path.iterdir()))


@dataclass(frozen=True, slots=True)
class PullNote:
    """What a pull into a folder is about to fetch: size and digest by file, as of one commit."""

    commit: str
    files: Mapping[str, tuple[int, str | None]]

    def has(self, folder: Path, name: str) -> bool:
        """Whether the folder holds a file of that name and size, all of it."""
        try:
            return (folder / name).stat().st_size == self.files[name][0]
        except OSError:
            return False

    def is_complete(self, folder: Path) -> bool:
        return all(self.has(folder, name) for name in self.files)

    def write(self, folder: Path) -> None:
        path = folder / NOTE
        scratch = path.with_name(path.name + ".new")
        scratch.write_text(json.dumps({"commit": self.commit, "files": self.files}, indent=1))
        scratch.replace(path)


def read_note(folder: Path) -> PullNote | None:
    """The note that a pull left in a folder; None for a folder of another origin."""
    try:
        value = json.loads((folder / NOTE).read_text())
        note = PullNote(value["commit"], {name: (int(size), digest) for name, (size, digest) in value["files"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # As pulls write it; one that names files elsewhere is not theirs.
    return None if any("/" in name or name in ("", ".", "..") for name in note.files) else note


def pulled_mark(file: Path) -> Path:
    """What a pull leaves beside a GGUF file of its own: a file with its size and, where the hub says it, the commit."""
    return file.with_name(f".{file.name}.pulled")


def mark_pulled(file: Path, commit: str | None = None) -> None:
    pulled_mark(file).write_text(f"{file.stat().st_size} {commit or ''}".rstrip())


def is_pulled(file: Path) -> bool:
    """Whether a pull has put the GGUF file there, and nobody another one of that name since."""
    return bool(_mark(file))


def pulled_commit(file: Path) -> str | None:
    """The commit that a pull has fetched the GGUF file of; None where that is not known."""
    return next(iter(_mark(file)[1:]), None)


def _mark(file: Path) -> list[str]:
    """The words of the file's mark; none where it is no such file's."""
    try:
        words = pulled_mark(file).read_text().split()
        return words if words[:1] == [str(file.stat().st_size)] else []
    except (OSError, ValueError):
        return []
