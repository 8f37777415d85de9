"""Gemma 2: norms before and after both halves of a block, and a sliding window in every other layer.

Layers 0, 2, ... see the last `sliding_window` tokens, the others all. Scores and logits are capped by cap tanh(x / cap).
Embedding rows are multiplied by sqrt(hidden_size). Norm gains in a GGUF file are complete: the converter has added the
1 of the checkpoint's (1 + w). The first files lack the keys of caps and window: all Gemma 2 models have the same.
Source: Gemma 2 report (arXiv 2408.00118), and the checkpoints' configurations.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotloop.models.config import ModelConfig
from hotloop.models.dense import as_float32, read_dense_config, sandwich_forward
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import sandwich_shapes
from hotloop.models.windows import read_sliding_layers, read_window

HARMLESS_PREFIXES: tuple[str, ...] = ()

_NUM_LAYERS_27B = 46


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = read_dense_config(meta, rope_style="half_split", activation="gelu_tanh", rope_factors=False)
    attention_scale = config.attention_scale
    if config.num_layers == _NUM_LAYERS_27B and not meta.has("attention.scale"):
        # The 27B is the one size whose query_pre_attn_scalar is not head_dim, and no key says so.
        attention_scale = as_float32(1 / math.sqrt(config.hidden_size // config.num_heads))
    window = read_window(meta, 4096)
    sliding = read_sliding_layers(meta, config.num_layers, period=2)
    return replace(
        config,
        layers=tuple(
            replace(layer, window=window if slides else None)
            for layer, slides in zip(config.layers, sliding, strict=True)
        ),
        attention_scale=attention_scale,
        embedding_scale=as_float32(math.sqrt(config.hidden_size)),
        attention_softcap=meta.number("attn_logit_softcapping", 50.0, positive=False),
        final_softcap=meta.number("final_logit_softcapping", 30.0, positive=False),
    )


tensor_shapes = sandwich_shapes
forward = sandwich_forward
