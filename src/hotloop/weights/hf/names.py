"""Names of tensors: from a folder's to GGUF's, by the rules of the model's class, and back."""

from __future__ import annotations

import re
from pathlib import Path

from hotloop.errors import ModelFileError
from hotloop.weights.hf.architecture import Architecture, Rule
from hotloop.weights.model_file import quote


class Names:
    """Names of one class: from the folder's to GGUF's and back. sources: GGUF name -> folder's, of what was translated."""

    def __init__(self, architecture: Architecture, path: Path) -> None:
        self._architecture = architecture
        self._path = path
        rules = {name: _as_rule(rule) for name, rule in architecture.tensors.items()}
        self._rules = rules | {"output": Rule(architecture.head[0])}
        self._by_source = {rule.source: name for name, rule in rules.items()}
        self.sources: dict[str, str] = {}

    def translate(self, source: str) -> str | None:
        """The GGUF name of a tensor, None for one that takes no part. Raises ModelFileError for an unknown one."""
        stem, _, suffix = source.rpartition(".")
        name = None
        if suffix in ("weight", "bias"):
            name = "output" if stem in self._architecture.head else self._in_body(stem)
        if name is None:
            if any(part in source for part in self._architecture.ignored):
                return None
            raise ModelFileError(
                f"{self._path}: tensor {quote(source)} is not implemented for {self._architecture.name}, and may change "
                f"the result"
            )
        name = f"{name}.{suffix}"
        if (other := self.sources.get(name)) is not None:
            raise ModelFileError(f"{self._path}: tensors {quote(other)} and {quote(source)} are one and the same: {name}")
        self.sources[name] = source
        return name

    def _in_body(self, stem: str) -> str | None:
        for prefix in self._architecture.body:
            if stem.startswith(prefix):
                return self._lookup(stem.removeprefix(prefix))
        return None

    def _lookup(self, stem: str) -> str | None:
        pattern, layer = _split_layer(stem)
        name = self._by_source.get(pattern)
        return None if name is None else name.replace("{}", layer)

    def rule(self, name: str) -> Rule:
        """The rule of a translated tensor."""
        return self._rules[_split_layer(name.rpartition(".")[0])[0]]

    def source(self, name: str) -> str:
        """What the folder calls a tensor, or would call it."""
        if name in self.sources:
            return self.sources[name]
        stem, _, suffix = name.rpartition(".")
        pattern, layer = _split_layer(stem)
        rule = self._rules.get(pattern)
        if rule is None:
            return name
        prefix = "" if pattern == "output" else self._architecture.body[-1]
        return prefix + rule.source.replace("{}", layer) + "." + suffix


def _as_rule(rule: str | Rule) -> Rule:
    return Rule(rule) if isinstance(rule, str) else rule


_LAYER = re.compile(r"(?<=\.)(0|[1-9]\d{0,3})(?=\.)")


def _split_layer(name: str) -> tuple[str, str]:
    """A name with its first number replaced by "{}", and the number; "" where it has none."""
    match = _LAYER.search(name)
    return (name, "") if match is None else (name[: match.start()] + "{}" + name[match.end() :], match[0])
