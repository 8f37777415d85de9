"""GLM-4: norms before and after both halves of a block, and adjacent rotated pairs in the first part of every head.

Gate and up are one tensor. Biases of q, k and v are optional.
"""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import has_qkv_bias, read_dense_config, sandwich_forward
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import sandwich_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    meta.size("rope.dimension_count")  # required: half of a head in every model there is, and the default is all of it
    return read_dense_config(meta, rope_style="interleaved", qkv_bias=has_qkv_bias(meta), fused_gate_up=True)


tensor_shapes = sandwich_shapes
forward = sandwich_forward
