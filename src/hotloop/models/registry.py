"""From a model file to a model: the architectures hotloop knows, by `general.architecture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hotloop.errors import ModelFileError
from hotloop.models import (
    gemma2,
    gemma3,
    glm4,
    gpt2,
    granite,
    llama,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    starcoder2,
)
from hotloop.models.config import ModelConfig
from hotloop.models.dense import Output
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import TensorShapes, check_tensors
from hotloop.ops.protocol import Ops, Value, Weights
from hotloop.weights.model_file import ModelFile


class Forward(Protocol):
    """One model call. Returns logits [L, vocab_size] of the rows that need them, or normed hidden states
    [T, hidden]."""

    def __call__(
        self,
        ops: Ops,
        weights: Weights,
        config: ModelConfig,
        layers: range | None = None,
        output: Output = "logits",
    ) -> Value: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read, check and run the files of one architecture.

    harmless_prefixes: metadata below `<architecture>.` that a text model may ignore.
    """

    read_config: Callable[[ArchMetadata], ModelConfig]
    tensor_shapes: Callable[[ModelConfig], TensorShapes]
    forward: Forward
    harmless_prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model: configuration, the shape of every tensor it uses, and its forward pass."""

    config: ModelConfig
    tensor_shapes: TensorShapes
    forward: Forward

    def weight_bytes(self, model_file: ModelFile) -> int:
        """Bytes of the file's tensors that the model uses."""
        return sum(model_file.tensors[name].nbytes for name in self.tensor_shapes if name in model_file.tensors)


_MODULES = (
    gemma2, gemma3, glm4, gpt2, granite, llama, olmo2, phi3, qwen2, qwen3, smollm3, starcoder2,
)  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture] = {
    module.__name__.rpartition(".")[2]: Architecture(
        module.read_config, module.tensor_shapes, module.forward, module.HARMLESS_PREFIXES
    )
    for module in _MODULES
}


def load_model_spec(model_file: ModelFile) -> Model:
    """Read a file's configuration and check that hotloop computes exactly what the file describes.

    Raises: ModelFileError naming the architecture, the metadata key or the tensors at fault.
    """
    name = model_file.get_str("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(f"{model_file.path}: architecture {name!r:.60} is not supported; hotloop knows {known}")
    meta = ArchMetadata(model_file, name)
    config = architecture.read_config(meta)
    meta.check_all_used(architecture.harmless_prefixes)
    shapes = architecture.tensor_shapes(config)
    check_tensors(model_file, shapes, name)
    return Model(config, shapes, architecture.forward)
