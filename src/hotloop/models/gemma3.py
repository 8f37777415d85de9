"""Gemma 3 (text): norms before and after both halves of a block, and mostly sliding-window layers.

Five of six layers see the last `sliding_window` tokens and rotate with a local base; every sixth sees all
and rotates with the global base and its scaling. Embedding rows are multiplied by sqrt(hidden_size). Norm
gains in a GGUF file are complete: the converter has added the 1 of the checkpoint's (1 + w).
Source: Gemma 3 technical report (arXiv 2503.19786), and the checkpoints' configuration defaults.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotloop.models.config import LayerConfig, ModelConfig
from hotloop.models.dense import as_float32, read_dense_config, sandwich_forward
from hotloop.models.metadata import ArchMetadata
from hotloop.models.rope import RopeConfig
from hotloop.models.tensors import sandwich_shapes
from hotloop.models.windows import read_sliding_layers, read_window

# Files with the vision tower in them are served as text models.
HARMLESS_PREFIXES = ("vision.", "mm.")

_LAYERS_27B, _HIDDEN_27B = 62, 5376


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    meta.number("rope.freq_base")  # required: what a missing one means is not agreed
    config = read_dense_config(meta, rope_style="half_split", activation="gelu_tanh", rope_factors=False, qk_norm="head")
    local_base = meta.number("rope.local.freq_base", 10000.0)
    local_base = meta.number("rope.freq_base_swa", local_base)
    if local_base <= 1:
        raise meta.error("rope.freq_base_swa", f"must be greater than 1, but is {local_base}")
    attention_scale = config.attention_scale
    is_27b = (config.num_layers, config.hidden_size) == (_LAYERS_27B, _HIDDEN_27B)
    if is_27b and not meta.has("attention.scale"):
        # The 27B is the one size whose query_pre_attn_scalar is not head_dim, and no key says so.
        attention_scale = as_float32(1 / math.sqrt(config.hidden_size // config.num_heads))
    return replace(
        config,
        layers=_read_layers(meta, config, local_base),
        attention_scale=attention_scale,
        embedding_scale=as_float32(math.sqrt(config.hidden_size)),
        attention_softcap=meta.number("attn_logit_softcapping", 0.0, positive=False),
        final_softcap=meta.number("final_logit_softcapping", 0.0, positive=False),
    )


def _read_layers(meta: ArchMetadata, config: ModelConfig, local_base: float) -> tuple[LayerConfig, ...]:
    full = config.layers[0]
    assert full.rope is not None
    window = read_window(meta)
    if window is None:
        return config.layers
    local_rope = RopeConfig(style=full.rope.style, dim=full.rope.dim, base=local_base)
    sliding = read_sliding_layers(meta, config.num_layers, period=6)
    return tuple(LayerConfig(local_rope, window) if slides else full for slides in sliding)


tensor_shapes = sandwich_shapes
forward = sandwich_forward
