"""Qwen3 (dense): Llama's block with an RMS norm on every head of q and k before rope, and no biases.

head_dim has a key of its own (attention.key_length) and need not be hidden_size / num_heads.
"""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    return read_dense_config(meta, rope_style="half_split", qk_norm="head")


tensor_shapes = dense_shapes
forward = pre_norm_forward
