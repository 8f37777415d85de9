"""SmolLM3: Llama's block, and every fourth layer does not encode positions.

Layers 3, 7, 11, ... see q and k unrotated (NoPE); no key says so, all models of this name are built that way.
Source: NoPE (arXiv 2501.18795), and the checkpoint's configuration.
"""

from __future__ import annotations

from dataclasses import replace

from hotloop.models import llama
from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes

HARMLESS_PREFIXES: tuple[str, ...] = ()

_NOPE_PERIOD = 4


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = llama.read_config(meta)
    layers = tuple(
        replace(layer, rope=None) if i % _NOPE_PERIOD == _NOPE_PERIOD - 1 else layer
        for i, layer in enumerate(config.layers)
    )
    return replace(config, layers=layers)


tensor_shapes = dense_shapes
forward = pre_norm_forward
