"""GPT-2: layer norms with a bias, a plain feed-forward, biases on every linear op, learned positions and no rope.

q, k and v are one tensor. There is no position past the last embedding, so context_length is a hard limit.
"""

from __future__ import annotations

from dataclasses import replace

from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = read_dense_config(
        meta,
        rope_style=None,
        norm="layer",
        feed_forward="plain",
        activation="gelu_tanh",
        qkv_bias=True,
        attention_output_bias=True,
        feed_forward_bias=True,
        fused_qkv=True,
    )
    return replace(config, learned_positions=True)


tensor_shapes = dense_shapes
forward = pre_norm_forward
