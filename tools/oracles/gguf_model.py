"""A GGUF file as the oracles see it: metadata and dequantized weights, read with the `gguf` package only.

Nothing here imports hotloop: an oracle that shared its reader or its dequantizers would share its mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_PLAIN_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


class GgufModel:
    """Metadata by key and weights by tensor name; a weight is dequantized at each call and not kept."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.path = path
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = str(self._fields["general.architecture"].contents())

    def metadata(self, key: str, default: Any = None) -> Any:
        """Value of a full metadata key, or `default`."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def parameter(self, key: str, default: Any = None) -> Any:
        """Value of a key below the architecture's name; KeyError if it is missing and has no default."""
        value = self.metadata(f"{self.architecture}.{key}", default)
        if value is None:
            raise KeyError(f"{self.path}: no metadata key {self.architecture}.{key}")
        return value

    def has(self, name: str) -> bool:
        """Whether the file has that tensor."""
        return name in self._tensors

    def is_quantized(self, name: str) -> bool:
        """Whether the tensor is stored in a block format (activations that meet it may be quantized, too)."""
        return self._tensors[name].tensor_type not in _PLAIN_TYPES

    def num_rows(self, name: str) -> int:
        """Output rows of a matrix: the slowest axis, which GGUF names last."""
        return int(self._tensors[name].shape[-1])

    def vector(self, name: str) -> F64:
        """A one-dimensional tensor, float64."""
        tensor = self._tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float64).reshape(-1)

    def rows(self, name: str, index: slice | npt.NDArray[np.int64] = slice(None)) -> F64:
        """Some rows of a matrix, float64 [rows, K]: the stored values, dequantized by the `gguf` package."""
        tensor = self._tensors[name]
        data = tensor.data.reshape(self.num_rows(name), -1)[index]
        return dequantize(np.ascontiguousarray(data), tensor.tensor_type).astype(np.float64)
