"""Granite (dense, 3.x): Llama's block with multipliers, which the checkpoint's configuration states.

embedding_scale multiplies the embedding rows, attention.scale the scores (in place of 1 / sqrt(head_dim)), residual_scale
what attention and feed-forward add to the residual; logits are divided by logit_scale. No weight is changed for it.
rope.scaling.finetuned, which says nothing elsewhere, is how converters write that positions are not encoded (false).
Source: the checkpoints' configurations.
"""

from __future__ import annotations

from dataclasses import replace

from hotloop.models import llama
from hotloop.models.config import ModelConfig
from hotloop.models.dense import as_float32, pre_norm_forward
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = llama.read_config(meta)
    if not meta.flag("rope.scaling.finetuned", True):
        config = replace(config, layers=tuple(replace(layer, rope=None) for layer in config.layers))
    return replace(
        config,
        embedding_scale=as_float32(meta.number("embedding_scale", 1.0)),
        residual_scale=as_float32(meta.number("residual_scale", 1.0)),
        logits_scale=as_float32(1 / meta.number("logit_scale")),
    )


tensor_shapes = dense_shapes
forward = pre_norm_forward
