"""The op set: everything a model may ask for, and nothing about how it is computed (docs/ops.md).

A model's ``forward(ops, weights, config)`` is written once over this protocol. ``ops.reference`` runs it eagerly in numpy
and is the definition; ``ops.native`` records it once into a step program that C++ replays. Values, matrices and vectors
are opaque: only the op set that made them looks inside.

Extents are symbolic: T tokens of the step, R requests, L logits rows. A recorded program serves every batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = Any  # float32 [T, width] or [L, width]
Matrix: TypeAlias = Any  # a weight [rows, cols]; linear computes x @ W.T
Vector: TypeAlias = Any  # a float32 weight [size]
Plan: TypeAlias = Any  # the step's work list of a plan op

Activation = Literal["silu", "gelu_tanh"]
RopeStyle = Literal["interleaved", "half_split"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one kind of layer.

    ``inv_freq``: float64 [rot_dim / 2], radians per position, all scaling (linear, llama3, YaRN, rope_freqs) applied.
    ``attention_factor``: cos and sin are multiplied by it (YaRN). ``style``: which elements form a pair.
    """

    inv_freq: NDArray[np.float64]
    style: RopeStyle
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class QKV:
    """Weights of a fused QKV projection. Matrices: [heads * head_dim, hidden]; biases and norm gains may be absent."""

    q: Matrix
    k: Matrix
    v: Matrix
    q_bias: Vector | None = None
    k_bias: Vector | None = None
    v_bias: Vector | None = None
    q_norm: Vector | None = None  # before rope: [head_dim], for each head; or [heads * head_dim], for the whole row
    k_norm: Vector | None = None
    norm_eps: float = 1e-6


class Weights(Protocol):
    """Named tensors of a model, as an op set holds them. Shapes are checked; missing tensors are load errors.

    ``start``: the first row (or element) of a part of a fused tensor, which shares its memory; a multiple of 8 for rows.
    None: the tensor is taken whole, and has just that shape.
    """

    def matrix(self, name: str, rows: int, cols: int, start: int | None = None) -> Matrix: ...
    def vector(self, name: str, size: int, start: int | None = None) -> Vector: ...
    def has(self, name: str) -> bool: ...


class Ops(Protocol):
    """The op set. ``x`` arguments are [T, width] unless stated; results are new values."""

    def embed(self, table: Matrix, *, scale: float = 1.0, positions: Matrix | None = None) -> Value:
        """Rows of ``table`` [vocab_size, hidden] for the step's token_ids, times ``scale``; plus rows of ``positions``
        (learned position embeddings, [positions, hidden]) for the step's positions: [T, hidden]."""

    def plan_rope(self, rope: Rope) -> Plan:
        """cos and sin of the step's positions, once per step and rope."""

    def plan_attention(self, group: int) -> Plan:
        """The step's attention work of KV group ``group``, shared by its layers."""

    def norm(self, x: Value, gain: Vector, eps: float, *, residual: Value | None = None) -> Value:
        """RMS norm over the last axis times ``gain``; plus ``residual`` if given (post-norm blocks)."""

    def layer_norm(self, x: Value, gain: Vector, bias: Vector, eps: float) -> Value:
        """Layer norm over the last axis: less the mean, over the standard deviation, times ``gain``, plus ``bias``."""

    def qkv(self, x: Value, weights: QKV, rope: Plan | None, layer: int) -> Value:
        """Project, add biases, norm and rotate q and k, append k and v to the layer's KV cache; returns q
        [T, num_heads * head_dim]. ``rope`` None: no rotation (NoPE layers)."""

    def attention(self, q: Value, plan: Plan, layer: int, *, scale: float, softcap: float = 0.0) -> Value:
        """Attention of q over the layer's KV cache, causal, within the group's window: [T, num_heads * head_dim]."""

    def linear(
        self,
        x: Value,
        weight: Matrix,
        *,
        bias: Vector | None = None,
        scale: float = 1.0,
        residual: Value | None = None,
    ) -> Value:
        """(x @ weight.T (+ bias)) * ``scale`` (+ residual): [T, rows]. ``scale`` is a float32."""

    def gate_up(self, x: Value, gate: Matrix, up: Matrix, activation: Activation) -> Value:
        """activation(x @ gate.T) * (x @ up.T): [T, intermediate]."""

    def up(self, x: Value, weight: Matrix, activation: Activation, *, bias: Vector | None = None) -> Value:
        """activation(x @ weight.T (+ bias)), the first half of a plain feed-forward: [T, intermediate]."""

    def select_logits_rows(self, x: Value) -> Value:
        """The rows of x whose logits the step needs: [L, width]."""

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap)."""
