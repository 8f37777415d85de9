"""Qwen2 and Qwen2.5: Llama's block with biases on q, k and v, and rotated pairs half a head apart."""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    return read_dense_config(meta, rope_style="half_split", qkv_bias=True)


tensor_shapes = dense_shapes
forward = pre_norm_forward
