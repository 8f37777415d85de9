"""OLMo 2: norms after both halves of a block and none before, and RMS norms over the whole rows of q and k before rope.

OLMo 3 has the same name in GGUF: three of four layers see the last `sliding_window` tokens, and rotate unscaled.
"""

from __future__ import annotations

from dataclasses import replace

from hotloop.models.config import LayerConfig, ModelConfig
from hotloop.models.dense import (
    LayerPlan,
    Output,
    attention_half,
    block_norm,
    dense_forward,
    feed_forward_half,
    read_dense_config,
)
from hotloop.models.metadata import ArchMetadata
from hotloop.models.rope import RopeConfig
from hotloop.models.tensors import model_shapes
from hotloop.models.windows import read_sliding_layers, read_window
from hotloop.ops.protocol import Ops, Value, Weights

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = read_dense_config(meta, rope_style="half_split", qk_norm="row")
    full = config.layers[0]
    assert full.rope is not None
    window = read_window(meta)
    if window is None:
        return config
    unscaled = RopeConfig(style=full.rope.style, dim=full.rope.dim, base=full.rope.base)
    sliding = read_sliding_layers(meta, config.num_layers, period=4)
    return replace(config, layers=tuple(LayerConfig(unscaled, window) if slides else full for slides in sliding))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a file must have: name -> shape, rows (outputs) first."""
    return model_shapes(config, ("post_attention_norm", "post_ffw_norm"))


def forward(
    ops: Ops,
    weights: Weights,
    config: ModelConfig,
    layers: range | None = None,
    output: Output = "logits",
) -> Value:
    """The whole model, as `dense_forward`."""
    return dense_forward(_block, ops, weights, config, layers, output)


def _block(ops: Ops, x: Value, weights: Weights, config: ModelConfig, layer: int, plan: LayerPlan) -> Value:
    """x + norm(attention(x)), then x + norm(feed_forward(x))."""
    o = attention_half(ops, x, weights, config, layer, plan)
    x = block_norm(ops, o, weights, config, layer, "post_attention_norm", residual=x)
    o = feed_forward_half(ops, x, weights, config, layer)
    return block_norm(ops, o, weights, config, layer, "post_ffw_norm", residual=x)
