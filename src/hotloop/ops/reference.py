"""The reference op set: every op in numpy, eagerly. It defines what an op computes (docs/ops.md).

Exactly specified: which values an op reads and rounds, that is the paged KV cache and its dtype, int8
activation quantization, the mask, the spans of 256 absolute positions, and that results of ops (and the parts
of the fused ones: projections, head norms, rotations) are float32. Up to rounding: what happens inside an op.
This op set computes there in float64, so its results are the exact ones, rounded once; an op set that
accumulates in float32 differs by the tolerances in docs/models.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.config import ActivationDtype
from hotloop.kv_cache.layout import KEY_GROUP_SIZE, VALUE_GROUP_SIZE, KVGroup
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.protocol import QKV, Activation, Rope, RopeStyle
from hotloop.quant.activations import GROUP_SIZE, quantize_activations
from hotloop.quant.formats import WEIGHT_FORMATS, dequantize
from hotloop.quant.kv import dequantize_kv, from_bf16, quantize_kv, quantize_queries, to_bf16
from hotloop.weights.model_file import ModelFile

Floats: TypeAlias = NDArray[Any]  # float32, or float64 where the op set was asked for it

SPAN = 256
"""Attention works in spans of this many positions, aligned to absolute position 0."""

_FLOAT_FORMATS = ("F32", "F16", "BF16")
_CHUNK_ELEMENTS = 1 << 22  # of a matrix, dequantized at a time


class ReferenceMatrix:
    """A weight matrix [rows, cols] as stored, dequantized when it is used.

    keep: whether to keep the dequantized values (float32) for the next use.
    """

    def __init__(self, format: str, data: NDArray[np.uint8], shape: tuple[int, int], *, keep: bool) -> None:
        self.format = format
        self.shape = shape
        self._rows = data.reshape(shape[0], WEIGHT_FORMATS[format].row_bytes(shape[1]))
        self._keep = keep

    def part(self, start: int, rows: int) -> ReferenceMatrix:
        """Rows [start, start + rows), dequantized apart from the whole."""
        assert start >= 0
        assert start + rows <= self.shape[0]
        data = self._rows[start : start + rows].reshape(-1)
        return ReferenceMatrix(self.format, data, (rows, self.shape[1]), keep=self._keep)

    @property
    def is_integer(self) -> bool:
        """Whether activations meet this matrix as int8."""
        return self.format not in _FLOAT_FORMATS

    def values(self, rows: slice | NDArray[np.int32]) -> NDArray[np.float32]:
        """Some rows, dequantized: float32 [n, cols]."""
        if self._keep:
            return self._values[rows]
        return self._dequantize(self._rows[rows])

    @cached_property
    def _values(self) -> NDArray[np.float32]:
        return self._dequantize(self._rows)

    def _dequantize(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        return dequantize(self.format, np.ascontiguousarray(rows).reshape(-1), (len(rows), self.shape[1]))


class ReferenceWeights:
    """The tensors of a model file for the reference op set. keep: see ReferenceMatrix."""

    def __init__(self, model_file: ModelFile, *, keep: bool = True) -> None:
        self._file = model_file
        self._keep = keep
        self._matrices: dict[tuple[str, int | None, int], ReferenceMatrix] = {}

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def matrix(self, name: str, rows: int, cols: int, start: int | None = None) -> ReferenceMatrix:
        """The matrix `name`, or rows of it from `start` on; one object for each."""
        key = (name, start, rows)
        if key not in self._matrices:
            tensor = self._file.tensors[name]
            whole = ReferenceMatrix(tensor.format, self._file.data(name), (tensor.shape[0], cols), keep=self._keep)
            self._matrices[key] = whole if start is None else whole.part(start, rows)
        matrix = self._matrices[key]
        assert matrix.shape == (rows, cols), f"{name} is {matrix.shape}, not {(rows, cols)}"
        return matrix

    def vector(self, name: str, size: int, start: int | None = None) -> NDArray[np.float32]:
        """The vector `name`, or elements of it from `start` on: float32 [size]."""
        tensor = self._file.tensors[name]
        values = dequantize(tensor.format, self._file.data(name), tensor.shape)
        if start is not None:
            values = values[start : start + size]
        assert values.shape == (size,), f"{name} is {tensor.shape}, not {(size,)}"
        return values


ReferenceKVDtype: TypeAlias = type[np.floating[Any]] | Literal["bf16", "int8"]


class ReferenceKV:
    """KV storage: per layer, K and V [num_blocks * block_size slots, num_kv_heads, head_dim] in the KV dtype, bf16 and
    int8 as the float32 values they stand for.

    Slots start as NaN, so that reading one that was never written cannot go unnoticed.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        *,
        num_blocks: int,
        block_size: int,
        dtype: ReferenceKVDtype = np.float32,
    ) -> None:
        self.dtype = dtype
        self.groups = tuple(groups)
        self.block_size = block_size
        self.group_of = {layer: i for i, group in enumerate(groups) for layer in group.layers}
        num_slots = num_blocks * block_size
        self.k: dict[int, Floats] = {}
        self.v: dict[int, Floats] = {}
        for group in groups:
            for layer in group.layers:
                shape = (num_slots, group.num_kv_heads, group.head_dim)
                array_dtype = np.float32 if isinstance(dtype, str) else dtype
                self.k[layer] = np.full(shape, np.nan, array_dtype)
                self.v[layer] = np.full(shape, np.nan, array_dtype)

    def has_int8_keys(self, group: int) -> bool:
        """Whether queries meet K as int8."""
        return self.dtype == "int8" and not self.groups[group].precise_keys

    def store(self, layer: int, slots: NDArray[np.int64], k: Floats, v: Floats) -> None:
        """Put K and V [T, num_kv_heads, head_dim] into slots."""
        if self.dtype == "int8":
            int8_keys = self.has_int8_keys(self.group_of[layer])
            k = _int8_values(k, KEY_GROUP_SIZE) if int8_keys else k.astype(np.float16)
            v = _int8_values(v, VALUE_GROUP_SIZE)
        elif self.dtype == "bf16":
            k, v = from_bf16(to_bf16(k.astype(np.float32))), from_bf16(to_bf16(v.astype(np.float32)))
        self.k[layer][slots] = k
        self.v[layer][slots] = v


def _int8_values(x: Floats, group_size: int) -> NDArray[np.float32]:
    return dequantize_kv(*quantize_kv(x.astype(np.float32), group_size), group_size)


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Rotations of the step's positions: cos and sin [T, rot_dim / 2]."""

    cos: Floats
    sin: Floats
    style: RopeStyle


class ReferenceOps:
    """The op set for one step: `batch` over `kv`. Implements hotloop.ops.protocol.Ops.

    activations: "int8" quantizes what meets an integer weight, "f32" never does (a test mode).
    dtype: of all values; float64 drops the rounding between ops, which makes the exact forward pass.
    """

    def __init__(
        self,
        batch: ForwardBatch,
        kv: ReferenceKV,
        *,
        activations: ActivationDtype = "int8",
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self._batch = batch
        self._kv = kv
        self._activations = activations
        self._dtype = dtype

    def embed(
        self, table: ReferenceMatrix, *, scale: float = 1.0, positions: ReferenceMatrix | None = None
    ) -> Floats:
        ids = self._batch.token_ids
        assert ((ids >= 0) & (ids < table.shape[0])).all(), "a token id is outside the vocabulary"
        rows = self._round(table.values(ids).astype(np.float64) * scale)
        if positions is None:
            return rows
        assert self._batch.positions.max() < positions.shape[0], "a position has no embedding"
        return self._round(rows.astype(np.float64) + positions.values(self._batch.positions))

    def plan_rope(self, rope: Rope) -> RopeTables:
        angles = self._batch.positions[:, None].astype(np.float64) * rope.inv_freq
        factor = float(self._dtype(rope.attention_factor))
        cos, sin = self._round(np.cos(angles)), self._round(np.sin(angles))
        return RopeTables(
            self._round(cos.astype(np.float64) * factor), self._round(sin.astype(np.float64) * factor), rope.style
        )

    def plan_attention(self, group: int) -> int:
        return group

    def norm(self, x: Floats, gain: Floats, eps: float, *, residual: Floats | None = None) -> Floats:
        normed = self._round(_rms_norm(x, gain, eps))
        return normed if residual is None else self._round(normed.astype(np.float64) + residual)

    def layer_norm(self, x: Floats, gain: Floats, bias: Floats, eps: float) -> Floats:
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = np.mean(centred**2, axis=-1, keepdims=True)
        return self._round(centred / np.sqrt(variance + eps) * gain + bias)

    def qkv(self, x: Floats, weights: QKV, rope: RopeTables | None, layer: int) -> Floats:
        head_dim = self._kv.groups[self._kv.group_of[layer]].head_dim
        q = self._heads(x, weights.q, weights.q_bias, weights.q_norm, weights.norm_eps, rope, head_dim)
        k = self._heads(x, weights.k, weights.k_bias, weights.k_norm, weights.norm_eps, rope, head_dim)
        v = self._heads(x, weights.v, weights.v_bias, None, weights.norm_eps, None, head_dim)
        slots = self._batch.slot_mapping[self._kv.group_of[layer]]
        self._kv.store(layer, slots, k, v)
        return q.reshape(len(x), -1)

    def attention(self, q: Floats, plan: int, layer: int, *, scale: float, softcap: float = 0.0) -> Floats:
        assert plan == self._kv.group_of[layer], "the plan is of another KV group"
        group = self._kv.groups[plan]
        # Query heads that share a KV head are neighbours: [T, kv heads, heads per kv head, head_dim].
        heads = q.reshape(len(q), group.num_kv_heads, -1, group.head_dim)
        if self._kv.has_int8_keys(plan):
            heads = quantize_queries(heads.astype(np.float32), KEY_GROUP_SIZE)
        heads = heads.astype(np.float64)
        out = np.empty_like(heads)
        for request, seq_len in enumerate(self._batch.seq_lens):
            rows = slice(*self._batch.query_start[request : request + 2])
            if rows.start == rows.stop:
                continue
            positions = self._batch.positions[rows]
            assert int(positions.max()) < seq_len
            slots = self._slots(plan, request, int(seq_len))
            out[rows] = _attend(
                heads[rows],
                positions,
                slots,
                self._kv.k[layer],
                self._kv.v[layer],
                group.window,
                scale,
                softcap,
            )
        return self._round(out.reshape(len(q), -1))

    def linear(
        self,
        x: Floats,
        weight: ReferenceMatrix,
        *,
        bias: Floats | None = None,
        scale: float = 1.0,
        residual: Floats | None = None,
    ) -> Floats:
        y = self._project(x, weight)
        if bias is not None:
            y = self._round(y.astype(np.float64) + bias)
        if scale != 1.0:
            y = self._round(y.astype(np.float64) * scale)
        return y if residual is None else self._round(y.astype(np.float64) + residual)

    def gate_up(self, x: Floats, gate: ReferenceMatrix, up: ReferenceMatrix, activation: Activation) -> Floats:
        g = self._project(x, gate).astype(np.float64)
        u = self._project(x, up).astype(np.float64)
        return self._round(_ACTIVATIONS[activation](g) * u)

    def up(
        self, x: Floats, weight: ReferenceMatrix, activation: Activation, *, bias: Floats | None = None
    ) -> Floats:
        y = self.linear(x, weight, bias=bias).astype(np.float64)
        return self._round(_ACTIVATIONS[activation](y))

    def select_logits_rows(self, x: Floats) -> Floats:
        selected: Floats = x[self._batch.logits_rows]
        return selected

    def softcap(self, x: Floats, cap: float) -> Floats:
        return self._round(cap * np.tanh(x.astype(np.float64) / cap))

    def _round(self, x: NDArray[np.float64]) -> Floats:
        return x.astype(self._dtype)

    def _project(self, x: Floats, weight: ReferenceMatrix) -> Floats:
        """x @ weight.T: [T, rows]."""
        rows, cols = weight.shape
        assert x.shape[1] == cols
        exact = x.astype(np.float64)
        if weight.is_integer and self._activations == "int8":
            codes, scales = quantize_activations(x.astype(np.float32))
            exact = codes.astype(np.float64) * np.repeat(scales, GROUP_SIZE, axis=-1)
        y = np.empty((len(x), rows), self._dtype)
        step = max(_CHUNK_ELEMENTS // cols, 1)
        for first in range(0, rows, step):
            chunk = slice(first, first + step)
            y[:, chunk] = exact @ weight.values(chunk).astype(np.float64).T
        return y

    def _heads(
        self,
        x: Floats,
        weight: ReferenceMatrix,
        bias: Floats | None,
        gain: Floats | None,
        eps: float,
        rope: RopeTables | None,
        head_dim: int,
    ) -> Floats:
        """Projected, biased, normed and rotated heads: [T, heads, head_dim]."""
        row = self.linear(x, weight, bias=bias)
        if gain is not None:  # of every head, or of the row
            row = self._round(_rms_norm(row.reshape(len(x), -1, len(gain)), gain, eps))
        heads = row.reshape(len(x), -1, head_dim)
        return heads if rope is None else self._round(_rotate(heads, rope))

    def _slots(self, group: int, request: int, seq_len: int) -> NDArray[np.int64]:
        """Where the request's positions lie in the KV storage: int64 [seq_len]."""
        positions = np.arange(seq_len, dtype=np.int64)
        blocks = self._batch.block_tables[group][request].astype(np.int64)
        size = self._kv.block_size
        slots: NDArray[np.int64] = blocks[positions // size] * size + positions % size
        return slots


def _rms_norm(x: Floats, gain: Floats, eps: float) -> NDArray[np.float64]:
    wide: NDArray[np.float64] = x.astype(np.float64)
    normed: NDArray[np.float64] = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps) * gain
    return normed


def _rotate(heads: Floats, rope: RopeTables) -> NDArray[np.float64]:
    """Rotate each pair of [T, heads, head_dim]; elements past the rotated ones stay."""
    rotated: NDArray[np.float64] = heads.astype(np.float64)
    half = rope.cos.shape[1]
    adjacent = rope.style == "interleaved"
    first = slice(0, 2 * half, 2) if adjacent else slice(0, half)
    second = slice(1, 2 * half, 2) if adjacent else slice(half, 2 * half)
    cos, sin = rope.cos[:, None, :].astype(np.float64), rope.sin[:, None, :].astype(np.float64)
    a, b = rotated[..., first].copy(), rotated[..., second].copy()
    rotated[..., first] = a * cos - b * sin
    rotated[..., second] = b * cos + a * sin
    return rotated


def _attend(
    q: NDArray[np.float64],
    positions: NDArray[np.int32],
    slots: NDArray[np.int64],
    k_cache: Floats,
    v_cache: Floats,
    window: int | None,
    scale: float,
    softcap: float,
) -> NDArray[np.float64]:
    """Attention of one request's tokens over its cached positions, span by span.

    q: [tokens, kv heads, heads per kv head, head_dim]. slots: of positions 0, 1, ... Each span yields the
    maximum m, the sum l of exp(score - m), and the sum o of exp(score - m) * v; partials merge in ascending
    order. Source: FlashAttention-2 (arXiv 2307.08691), section 3.1.
    """
    lowest = 0 if window is None else max(int(positions.min()) - window + 1, 0)
    m = np.full(q.shape[:3], -np.inf)
    l = np.zeros(q.shape[:3])
    o = np.zeros(q.shape)
    for span in range(lowest // SPAN * SPAN, int(positions.max()) + 1, SPAN):
        keys = np.arange(max(span, lowest), min(span + SPAN, int(positions.max()) + 1))
        visible = keys <= positions[:, None]
        if window is not None:
            visible &= keys > positions[:, None] - window
        k, v = k_cache[slots[keys]].astype(np.float64), v_cache[slots[keys]].astype(np.float64)
        scores = np.einsum("tgqd,sgd->tgqs", q, k, optimize=True) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(visible[:, None, None, :], scores, -np.inf)
        new_m = np.maximum(m, scores.max(axis=-1))
        # A token that sees nothing of the span keeps its partial as it is; -inf - -inf must not arise.
        pivot = np.where(np.isfinite(new_m), new_m, 0.0)
        shrink = np.exp(m - pivot)
        weights = np.exp(scores - pivot[..., None])
        l = l * shrink + weights.sum(axis=-1)
        o = o * shrink[..., None] + np.einsum("tgqs,sgd->tgqd", weights, v, optimize=True)
        m = new_m
    result: NDArray[np.float64] = o / l[..., None]
    return result


def _silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * (0.5 * (1 + np.tanh(0.5 * x)))


def _gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Source: Gaussian error linear units (arXiv 1606.08415), the tanh form."""
    result: NDArray[np.float64] = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


_ACTIVATIONS: Mapping[Activation, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
}
