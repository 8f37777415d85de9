"""Metadata of one architecture: typed reads that are remembered, so that no key goes unnoticed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.errors import ModelFileError
from hotloop.weights.model_file import MetadataValue, ModelFile

# Keys that do not touch the mathematics of a forward pass.
_HARMLESS = frozenset({"vocab_size", "pooling_type", "rope.scaling.finetuned", "tensor_data_layout"})

# Keys that say nothing as long as they hold this value.
_INERT: Mapping[str, MetadataValue] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "use_parallel_residual": False,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
}


class ArchMetadata:
    """The `<architecture>.*` keys of a file. A key that is never read is an error in `check_all_used`."""

    def __init__(self, model_file: ModelFile, architecture: str) -> None:
        self.file = model_file
        self.architecture = architecture
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return self._key(name) in self.file.metadata

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer from `least` to 2^31 - 1. Raises ModelFileError if it is anything else, or missing."""
        key = self._key(name)
        value = self.file.get_int(key) if default is None else self.file.get_int(key, default)
        if not least <= value < 2**31:
            raise self.error(name, f"must be from {least} to 2^31 - 1, but is {value}")
        return value

    def number(self, name: str, default: float | None = None, *, positive: bool = True) -> float:
        """A finite number, > 0 (or >= 0). Raises ModelFileError if it is anything else, or missing."""
        key = self._key(name)
        value = self.file.get_float(key) if default is None else self.file.get_float(key, default)
        if value < 0 or (positive and value == 0):
            raise self.error(name, f"must be {'greater than' if positive else 'at least'} 0, but is {value}")
        return value

    def text(self, name: str, default: str) -> str:
        return self.file.get_str(self._key(name), default)

    def flag(self, name: str, default: bool) -> bool:
        return self.file.get_bool(self._key(name), default)

    def flags(self, name: str, count: int) -> tuple[bool, ...] | None:
        """An array of `count` booleans, or None where the key is missing or holds a single number."""
        value = self.file.metadata.get(self._key(name))
        if not isinstance(value, np.ndarray):
            return None
        if len(value) < count:
            raise self.error(name, f"must have an item for each of {count} layers, but has {len(value)}")
        return tuple(bool(item) for item in value[:count])

    def error(self, name: str, problem: str) -> ModelFileError:
        """An error about a key, naming file and key, and what a folder's configuration calls it."""
        key = f"{self.architecture}.{name}"
        called = self.file.source_key(key)
        where = f" ({called} in config.json)" if called else ""
        return ModelFileError(f"{self.file.path}: metadata key {key} {problem}{where}")

    def check_all_used(self, harmless_prefixes: tuple[str, ...] = ()) -> None:
        """Raise ModelFileError naming every key that was not read and may change the mathematics."""
        prefix = self.architecture + "."
        unknown = []
        for key, value in self.file.metadata.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or name in _HARMLESS or name.startswith(harmless_prefixes):
                continue
            if key not in self._used and not _is_inert(name, value):
                unknown.append(f"{key:.100} = {value!r:.60}")
        if unknown:
            raise ModelFileError(
                f"{self.file.path}: metadata that hotloop does not implement for {self.architecture}, "
                f"and that may change the result: {', '.join(sorted(unknown)[:20])}"
            )

    def _key(self, name: str) -> str:
        key = f"{self.architecture}.{name}"
        self._used.add(key)
        return key


def _is_inert(name: str, value: MetadataValue) -> bool:
    return name in _INERT and isinstance(value, bool | int | float) and value == _INERT[name]
