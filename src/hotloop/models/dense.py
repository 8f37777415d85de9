"""What dense decoders share: the common configuration, the pre-norm block, the two ends of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from hotloop.models.config import LayerConfig, ModelConfig, kv_groups
from hotloop.models.metadata import ArchMetadata
from hotloop.models.rope import RopeConfig, read_rope
from hotloop.ops.protocol import QKV, Activation, Matrix, Ops, Plan, RopeStyle, Value, Vector, Weights

Output = Literal["logits", "hidden_states"]

_HEAD_DIM_STEP = 16  # lanes of a float reduction: kernels take whole vectors of a head
_MAX_HEAD_DIM = 1 << 14  # the rotations of each element are computed before the tensors are looked at


def read_dense_config(
    meta: ArchMetadata,
    *,
    rope_style: RopeStyle | None,
    activation: Activation = "silu",
    norm: Literal["rms", "layer"] = "rms",
    feed_forward: Literal["gated", "plain"] = "gated",
    rope_factors: bool = True,
    qkv_bias: bool = False,
    attention_output_bias: bool = False,
    feed_forward_bias: bool = False,
    qk_norm: Literal["head", "row"] | None = None,
    fused_qkv: bool = False,
    fused_gate_up: bool = False,
) -> ModelConfig:
    """Read the keys that all dense decoders have; every layer gets the same rope, and full attention.

    rope_style: None for no rotation. rope_factors: whether the architecture knows tensors of rope factors.
    fused_qkv: whether q, k and v must be one tensor; in other architectures they may be.
    Raises: ModelFileError naming the key that is missing, malformed or not implemented.
    """
    num_layers = meta.size("block_count")
    if num_layers > len(meta.file.tensors):
        raise meta.error("block_count", f"is {num_layers}, but the file has {len(meta.file.tensors)} tensors")
    hidden_size = meta.size("embedding_length")
    num_heads = meta.size("attention.head_count")
    num_kv_heads = meta.size("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise meta.error("attention.head_count_kv", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    if not meta.has("attention.key_length") and hidden_size % num_heads:
        raise meta.error("embedding_length", f"is {hidden_size}, not a multiple of {num_heads} heads")
    head_dim = meta.size("attention.key_length", max(hidden_size // num_heads, 1))
    if head_dim % _HEAD_DIM_STEP or head_dim > _MAX_HEAD_DIM:
        raise meta.error(
            "attention.key_length",
            f"(or embedding_length / head_count) is {head_dim}; attention kernels need a multiple of {_HEAD_DIM_STEP}, "
            f"{_MAX_HEAD_DIM} at most",
        )
    if meta.size("attention.value_length", head_dim) != head_dim:
        raise meta.error("attention.value_length", f"must equal the key length {head_dim}; others are unsupported")
    context_length = meta.size("context_length")
    rope = rope_style and read_rope(meta, rope_style, head_dim, context_length, tensors=rope_factors)
    embedding = meta.file.tensors.get("token_embd.weight")
    return ModelConfig(
        architecture=meta.architecture,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=meta.size("feed_forward_length"),
        vocab_size=embedding.shape[0] if embedding else 0,
        context_length=context_length,
        norm_eps=meta.number(f"attention.layer_norm_{'rms_' if norm == 'rms' else ''}epsilon"),
        attention_scale=meta.number("attention.scale", as_float32(1 / math.sqrt(head_dim))),
        activation=activation,
        layers=(LayerConfig(rope),) * num_layers,
        tied_embeddings="output.weight" not in meta.file.tensors,
        qkv_bias=qkv_bias,
        attention_output_bias=attention_output_bias,
        qk_norm=qk_norm,
        fused_qkv=fused_qkv or "blk.0.attn_qkv.weight" in meta.file.tensors,
        fused_gate_up=fused_gate_up,
        norm=norm,
        feed_forward=feed_forward,
        feed_forward_bias=feed_forward_bias,
    )


def has_qkv_bias(meta: ArchMetadata) -> bool:
    """Whether the file has the optional biases of q, k and v."""
    return any(f"blk.0.{name}.bias" in meta.file.tensors for name in ("attn_q", "attn_qkv"))


def as_float32(value: float) -> float:
    """The nearest float32: model constants are float32 wherever they are computed."""
    return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The plans of one layer: rotations (None for no rotation) and attention work."""

    rope: Plan | None
    attention: Plan


def plan_layers(ops: Ops, config: ModelConfig, layers: range | None) -> list[LayerPlan]:
    """Plan each distinct rope and KV group once and hand the plans to the layers that are to run.

    layers: which layers, from 0 on; None for all. Raises ValueError for a range that is not 0, 1, ..., n.
    """
    chosen = range(config.num_layers) if layers is None else layers
    if chosen.start != 0 or chosen.step != 1 or not 0 < len(chosen) <= config.num_layers:
        raise ValueError(f"layers must be range(0, n) with n from 1 to {config.num_layers}, but is {layers}")
    group_of = {layer: i for i, group in enumerate(kv_groups(config)) for layer in group.layers}
    ropes: dict[RopeConfig | None, Plan | None] = {None: None}
    attention: dict[int, Plan] = {}
    plans = []
    for layer in chosen:
        rope_config, group = config.layers[layer].rope, group_of[layer]
        if rope_config is not None and rope_config not in ropes:
            ropes[rope_config] = ops.plan_rope(rope_config.rope())
        if group not in attention:
            attention[group] = ops.plan_attention(group)
        plans.append(LayerPlan(ropes[rope_config], attention[group]))
    return plans


def qkv_weights(weights: Weights, config: ModelConfig, layer: int) -> QKV:
    """The weights of a layer's QKV projection, with the biases and norms that the model has."""
    blk, hidden, head_dim = f"blk.{layer}.", config.hidden_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def matrix(part: str, rows: int, start: int) -> Matrix:
        if config.fused_qkv:
            return weights.matrix(blk + "attn_qkv.weight", rows, hidden, start)
        return weights.matrix(f"{blk}attn_{part}.weight", rows, hidden)

    def bias(part: str, size: int, start: int) -> Vector | None:
        if not config.qkv_bias:
            return None
        if config.fused_qkv:
            return weights.vector(blk + "attn_qkv.bias", size, start)
        return weights.vector(f"{blk}attn_{part}.bias", size)

    def gain(part: str, row: int) -> Vector | None:
        size = row if config.qk_norm == "row" else head_dim
        return weights.vector(f"{blk}attn_{part}_norm.weight", size) if config.qk_norm else None

    return QKV(
        q=matrix("q", q_size, 0),
        k=matrix("k", kv_size, q_size),
        v=matrix("v", kv_size, q_size + kv_size),
        q_bias=bias("q", q_size, 0),
        k_bias=bias("k", kv_size, q_size),
        v_bias=bias("v", kv_size, q_size + kv_size),
        q_norm=gain("q", q_size),
        k_norm=gain("k", kv_size),
        norm_eps=config.norm_eps,
    )


def attention_half(
    ops: Ops, h: Value, weights: Weights, config: ModelConfig, layer: int, plan: LayerPlan, residual: Value | None = None
) -> Value:
    """The output projection of attention over h, times residual_scale, plus `residual`: [T, hidden]."""
    blk, hidden, heads = f"blk.{layer}.", config.hidden_size, config.num_heads * config.head_dim
    q = ops.qkv(h, qkv_weights(weights, config, layer), plan.rope, layer)
    a = ops.attention(q, plan.attention, layer, scale=config.attention_scale, softcap=config.attention_softcap)
    bias = weights.vector(blk + "attn_output.bias", hidden) if config.attention_output_bias else None
    output = weights.matrix(blk + "attn_output.weight", hidden, heads)
    return ops.linear(a, output, bias=bias, scale=config.residual_scale, residual=residual)


def feed_forward_half(
    ops: Ops, h: Value, weights: Weights, config: ModelConfig, layer: int, residual: Value | None = None
) -> Value:
    """down(act(gate(h)) * up(h)), or down(act(up(h))), times residual_scale, plus `residual`: [T, hidden]."""
    blk, hidden, inner = f"blk.{layer}.", config.hidden_size, config.intermediate_size
    down = weights.matrix(blk + "ffn_down.weight", hidden, inner)
    if config.feed_forward == "plain":
        up_bias, down_bias = (
            weights.vector(f"{blk}{name}.bias", size) if config.feed_forward_bias else None
            for name, size in (("ffn_up", inner), ("ffn_down", hidden))
        )
        u = ops.up(h, weights.matrix(blk + "ffn_up.weight", inner, hidden), config.activation, bias=up_bias)
        return ops.linear(u, down, bias=down_bias, residual=residual)
    if config.fused_gate_up:
        gate, up = (weights.matrix(blk + "ffn_up.weight", inner, hidden, start) for start in (0, inner))
    else:
        gate, up = (weights.matrix(f"{blk}ffn_{part}.weight", inner, hidden) for part in ("gate", "up"))
    g = ops.gate_up(h, gate, up, config.activation)
    return ops.linear(g, down, scale=config.residual_scale, residual=residual)


def block_norm(
    ops: Ops, x: Value, weights: Weights, config: ModelConfig, layer: int, name: str, residual: Value | None = None
) -> Value:
    """The norm `name` of a layer, plus `residual` (which layer norms do not take): [T, hidden]."""
    return _norm(ops, x, weights, config, f"blk.{layer}.{name}", residual)


def _norm(
    ops: Ops, x: Value, weights: Weights, config: ModelConfig, name: str, residual: Value | None = None
) -> Value:
    gain = weights.vector(name + ".weight", config.hidden_size)
    if config.norm == "rms":
        return ops.norm(x, gain, config.norm_eps, residual=residual)
    assert residual is None
    return ops.layer_norm(x, gain, weights.vector(name + ".bias", config.hidden_size), config.norm_eps)


def pre_norm_block(ops: Ops, x: Value, weights: Weights, config: ModelConfig, layer: int, plan: LayerPlan) -> Value:
    """x + attention(norm(x)), then x + feed_forward(norm(x)): Llama's and Qwen's block."""
    h = block_norm(ops, x, weights, config, layer, "attn_norm")
    x = attention_half(ops, h, weights, config, layer, plan, residual=x)
    h = block_norm(ops, x, weights, config, layer, "ffn_norm")
    return feed_forward_half(ops, h, weights, config, layer, residual=x)


def sandwich_block(ops: Ops, x: Value, weights: Weights, config: ModelConfig, layer: int, plan: LayerPlan) -> Value:
    """x + norm(attention(norm(x))), then x + norm(feed_forward(norm(x))): Gemma's and GLM-4's block."""
    h = block_norm(ops, x, weights, config, layer, "attn_norm")
    o = attention_half(ops, h, weights, config, layer, plan)
    x = block_norm(ops, o, weights, config, layer, "post_attention_norm", residual=x)
    h = block_norm(ops, x, weights, config, layer, "ffn_norm")
    o = feed_forward_half(ops, h, weights, config, layer)
    return block_norm(ops, o, weights, config, layer, "post_ffw_norm", residual=x)


def embed(ops: Ops, weights: Weights, config: ModelConfig) -> Value:
    """The scaled embedding rows of the step's tokens: [T, hidden]."""
    table = weights.matrix("token_embd.weight", config.vocab_size, config.hidden_size)
    positions = None
    if config.learned_positions:
        positions = weights.matrix("position_embd.weight", config.context_length, config.hidden_size)
    return ops.embed(table, scale=config.embedding_scale, positions=positions)


def finish(ops: Ops, x: Value, weights: Weights, config: ModelConfig, output: Output) -> Value:
    """The final norm, and the logits of the rows that need them: [T, hidden] or [L, vocab_size]."""
    if output == "hidden_states":
        return _norm(ops, x, weights, config, "output_norm")
    x = _norm(ops, ops.select_logits_rows(x), weights, config, "output_norm")
    name = "token_embd.weight" if config.tied_embeddings else "output.weight"
    head = weights.matrix(name, config.vocab_size, config.hidden_size)
    logits = ops.linear(x, head, scale=config.logits_scale)
    return ops.softcap(logits, config.final_softcap) if config.final_softcap else logits


class Block(Protocol):
    """One layer: [T, hidden] to [T, hidden]."""

    def __call__(
        self, ops: Ops, x: Value, weights: Weights, config: ModelConfig, layer: int, plan: LayerPlan
    ) -> Value: ...


def dense_forward(
    block: Block, ops: Ops, weights: Weights, config: ModelConfig, layers: range | None, output: Output
) -> Value:
    """A whole model of such blocks. layers: range(0, n) leaves early. Returns as `finish`."""
    plans = plan_layers(ops, config, layers)
    x = embed(ops, weights, config)
    for layer, plan in enumerate(plans):
        x = block(ops, x, weights, config, layer, plan)
    return finish(ops, x, weights, config, output)


def pre_norm_forward(
    ops: Ops,
    weights: Weights,
    config: ModelConfig,
    layers: range | None = None,
    output: Output = "logits",
) -> Value:
    """A whole model of pre-norm blocks, as `dense_forward`."""
    return dense_forward(pre_norm_block, ops, weights, config, layers, output)


def sandwich_forward(
    ops: Ops,
    weights: Weights,
    config: ModelConfig,
    layers: range | None = None,
    output: Output = "logits",
) -> Value:
    """A whole model of sandwich blocks, as `dense_forward`."""
    return dense_forward(sandwich_block, ops, weights, config, layers, output)
