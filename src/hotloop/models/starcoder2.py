"""StarCoder2: Llama's attention with layer norms, a plain feed-forward, and biases on every linear op or on none.

Rotated pairs are half a head apart. A sliding window, where a file has one, is every layer's.
"""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes
from hotloop.models.windows import with_window

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    biases = "blk.0.attn_output.bias" in meta.file.tensors
    config = read_dense_config(
        meta,
        rope_style="half_split",
        norm="layer",
        feed_forward="plain",
        activation="gelu_tanh",
        qkv_bias=biases,
        attention_output_bias=biases,
        feed_forward_bias=biases,
    )
    return with_window(meta, config)


tensor_shapes = dense_shapes
forward = pre_norm_forward
