"""ModelConfig: what the mathematics of a dense decoder depends on, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hotloop.kv_cache.layout import KVGroup
from hotloop.models.rope import RopeConfig
from hotloop.ops.protocol import Activation


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs between the layers of a model.

    rope: None where positions are not encoded. window: tokens a query sees, itself included; None: all.
    """

    rope: RopeConfig | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder. Lengths in elements, context_length in tokens.

    attention_scale: factor of q . k. attention_softcap, final_softcap: cap of the scores and of the logits,
    0 for none. embedding_scale, residual_scale, logits_scale: factors of the embedding rows, of what a layer's
    halves add, and of the logits. tied_embeddings: logits use token_embd.
    qkv_bias, attention_output_bias, feed_forward_bias: which biases the layers have. qk_norm: whether q and k are normed,
    head by head or over the whole row. fused_qkv: q, k and v are one tensor, in this order. fused_gate_up: so are gate and
    up. norm: RMS norm with a gain, or layer norm with a gain and a bias. feed_forward: down(act(gate) * up), or
    down(act(up)). learned_positions: every position below context_length has an embedding, and no other can be.
    """

    architecture: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    norm_eps: float
    attention_scale: float
    activation: Activation
    layers: tuple[LayerConfig, ...]
    tied_embeddings: bool
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    qkv_bias: bool = False
    attention_output_bias: bool = False
    qk_norm: Literal["head", "row"] | None = None
    fused_qkv: bool = False
    fused_gate_up: bool = False
    norm: Literal["rms", "layer"] = "rms"
    feed_forward: Literal["gated", "plain"] = "gated"
    feed_forward_bias: bool = False
    learned_positions: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def kv_groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """One KV group per distinct window, in the order of each one's first layer.

    Most models have one group. gemma3 has two: group 0 the sliding layers, group 1 the full ones.
    """
    windows = dict.fromkeys(layer.window for layer in config.layers)
    return tuple(
        KVGroup(
            layers=tuple(i for i, layer in enumerate(config.layers) if layer.window == window),
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=window,
            precise_keys=config.qkv_bias,
        )
        for window in windows
    )
