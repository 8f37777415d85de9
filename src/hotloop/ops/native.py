"""The native op set: records a model's forward once into a step program that C++ replays.

Recording makes a list of launches over values. A value can be wanted as f32, as int8 (what a quantized weight consumes),
or both; producers that can make the int8 form themselves (norm, attention, gate_up) do so, others get a quantize launch.
``NativeOps.compile`` then gives every wanted form a place in one arena, reusing memory once its last reader has run, and
emits the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.config import ActivationDtype
from hotloop.kv_cache.storage import KVStorage
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.protocol import QKV, Activation, Rope
from hotloop.quant.formats import dequantize
from hotloop.weights.model_file import ModelFile, TensorInfo

Extent = Literal["tokens", "logits"]
Form = Literal["f32", "int8"]

_FLOAT_FORMATS = ("F32", "F16", "BF16")
_CHUNK_BYTES = 8 << 20  # of a matrix that is not read as it lies


@dataclass(eq=False, slots=True)
class NativeValue:
    """float32 [extent, width], possibly also (or only) in int8 form."""

    width: int
    extent: Extent
    makes_int8: bool  # the producer can write the int8 form itself
    launch: int  # index of the producing launch
    storage: dict[Form, _Storage] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        return _round_up(self.width, 16)


@dataclass(eq=False, slots=True)
class _Storage:
    nbytes: int  # a multiple of 64, so every offset is 64-byte aligned
    first: int  # launch that writes it
    last: int  # last launch that reads it
    offset: int = -1


@dataclass(frozen=True, slots=True)
class _RopePlan:
    value: NativeValue
    style: str
    rot_dim: int


@dataclass(eq=False, slots=True)
class _AttentionPlan:
    group: int
    num_heads: int | None = None  # known once the first attention uses the plan
    work: _native.AttentionWork | None = None


class NativeWeights:
    """Tensors of a model file, repacked into native layouts and shared by all programs. The file is not needed afterwards."""

    def __init__(self, model_file: ModelFile, names: Iterable[str], team: _native.ThreadTeam) -> None:
        """Load the tensors ``names``: matrices and vectors in formats that load_model_spec accepts.

        Raises: ModelFileError if the file cannot be read, or was truncated since it was opened.
        """
        wanted = frozenset(names)
        infos = [info for name, info in model_file.tensors.items() if name in wanted]  # in the order of the file
        self._matrices: dict[str, _native.WeightMatrix] = {}
        self._vectors: dict[str, _native.WeightVector] = {}
        matrices = [(i, _native.WeightFormat[i.format], *i.shape) for i in infos if len(i.shape) == 2]
        memory = _native.WeightMemory(sum(_native.matrix_bytes(kind, rows, cols) for _, kind, rows, cols in matrices))
        for info, weight_format, rows, cols in matrices:
            location = model_file.location(info.name)
            if location is None:
                matrix = _native.WeightMatrix.empty(weight_format, rows, cols, memory)
                _fill(matrix, model_file, info, team)
            else:
                try:
                    matrix = _native.WeightMatrix.read(weight_format, rows, cols, *location, team, memory)
                except RuntimeError as error:
                    raise model_file.unreadable(info.name, str(error)) from None
            self._matrices[info.name] = matrix
        for info in infos:
            if len(info.shape) == 1:
                values = dequantize(info.format, model_file.read(info.name), info.shape)
                self._vectors[info.name] = _native.WeightVector(np.ascontiguousarray(values, np.float32))

    @property
    def nbytes(self) -> int:
        """Bytes of all weights held, repacked."""
        return sum(m.nbytes for m in self._matrices.values()) + sum(v.nbytes for v in self._vectors.values())

    def has(self, name: str) -> bool:
        return name in self._matrices or name in self._vectors

    def matrix(self, name: str, rows: int, cols: int, start: int | None = None) -> _native.WeightMatrix:
        matrix = self._matrices[name]
        if start is not None:
            matrix = matrix.part(start, rows)
        assert (matrix.rows, matrix.cols) == (rows, cols), f"{name} is not {rows} x {cols}"
        return matrix

    def vector(self, name: str, size: int, start: int | None = None) -> _native.WeightVector:
        vector = self._vectors[name]
        if start is not None:
            vector = vector.part(start, size)
        assert vector.size == size, f"{name} has not {size} elements"
        return vector


def _fill(matrix: _native.WeightMatrix, model_file: ModelFile, info: TensorInfo, team: _native.ThreadTeam) -> None:
    """Repack what has to be made on reading, a few megabytes of rows at a time."""
    step = _round_up(max(_CHUNK_BYTES // info.row_bytes, 1), _native.WeightMatrix.row_block())
    for start in range(0, info.num_rows, step):
        rows = model_file.read_rows(info.name, start, min(start + step, info.num_rows))
        matrix.fill(start, rows, team)


class NativeOps:
    """Implements ``ops.protocol.Ops`` by recording; ``compile`` ends the recording."""

    def __init__(
        self,
        storage: KVStorage,
        team: _native.ThreadTeam,
        *,
        isa: str = "",
        activations: ActivationDtype = "int8",
        max_tokens: int,
        max_logits: int,
    ) -> None:
        self._storage = storage
        self._layout = storage.layout
        self._activations = activations
        self._max_rows: dict[Extent, int] = {"tokens": max_tokens, "logits": max_logits}
        self._program = _native.Program(isa, team, max_tokens)
        self._launches: list[Callable[[], None]] = []
        self._storages: list[_Storage] = []

    # ---- the op protocol --------------------------------------------------------------------------------------------

    def embed(
        self, table: _native.WeightMatrix, *, scale: float = 1.0, positions: _native.WeightMatrix | None = None
    ) -> NativeValue:
        out = self._value(table.cols, "tokens")
        self._launch(lambda: self._program.embed(table, scale, positions, self._buffer(out)))
        self._use(out, "f32", writes=True)
        return out

    def plan_rope(self, rope: Rope) -> _RopePlan:
        rot_dim = 2 * len(rope.inv_freq)
        out = self._value(rot_dim, "tokens")
        inv_freq = np.ascontiguousarray(rope.inv_freq, np.float64)
        self._launch(lambda: self._program.plan_rope(inv_freq, rope.attention_factor, self._buffer(out)))
        self._use(out, "f32", writes=True)
        return _RopePlan(out, rope.style, rot_dim)

    def plan_attention(self, group: int) -> _AttentionPlan:
        plan = _AttentionPlan(group)

        def emit() -> None:
            g = self._layout.groups[group]
            if plan.num_heads is not None:
                plan.work = self._program.plan_attention(plan.num_heads, g.num_kv_heads, g.head_dim, g.window or 0)

        self._launch(emit)
        return plan

    def norm(
        self, x: NativeValue, gain: _native.WeightVector, eps: float, *, residual: NativeValue | None = None
    ) -> NativeValue:
        out = self._value(x.width, x.extent, makes_int8=x.width % 32 == 0)
        self._launch(lambda: self._program.norm(self._buffer(x), gain, eps, self._buffer(residual), self._output(out)))
        self._use(x, "f32")
        if residual is not None:
            self._use(residual, "f32")
        return out

    def layer_norm(
        self, x: NativeValue, gain: _native.WeightVector, bias: _native.WeightVector, eps: float
    ) -> NativeValue:
        out = self._value(x.width, x.extent, makes_int8=x.width % 32 == 0)
        self._launch(lambda: self._program.layer_norm(self._buffer(x), gain, bias, eps, self._output(out)))
        self._use(x, "f32")
        return out

    def qkv(self, x: NativeValue, weights: QKV, rope: _RopePlan | None, layer: int) -> NativeValue:
        source = self._input(x, weights.q, weights.k, weights.v)
        out = self._value(weights.q.rows, "tokens")
        head_dim = self._layout.groups[self._layout.group_of(layer)].head_dim
        if weights.q_norm is not None and weights.q_norm.size != head_dim:
            self._qkv_normed_by_row(source, weights, rope, layer, out)
            return out
        vectors = [weights.q_bias, weights.k_bias, weights.v_bias, weights.q_norm, weights.k_norm]

        def emit() -> None:
            self._program.qkv(
                source(), weights.q, weights.k, weights.v, vectors, weights.norm_eps, *self._rope(rope),
                self._kv_layer(layer), self._buffer(out), _native.Buffer(),
            )  # fmt: skip

        self._launch(emit)
        if rope is not None:
            self._use(rope.value, "f32")
        self._use(out, "f32", writes=True)
        return out

    def _qkv_normed_by_row(
        self, source: Callable[[], _native.Input], weights: QKV, rope: _RopePlan | None, layer: int, out: NativeValue
    ) -> None:
        """No head of q or k is done before all are projected: two launches."""
        q_gain, k_gain = weights.q_norm, weights.k_norm
        assert q_gain is not None
        assert k_gain is not None
        k = self._value(weights.k.rows, "tokens")
        biases = [weights.q_bias, weights.k_bias, weights.v_bias, None, None]
        self._launch(
            lambda: self._program.qkv(
                source(), weights.q, weights.k, weights.v, biases, weights.norm_eps, *self._rope(None),
                self._kv_layer(layer), self._buffer(out), self._buffer(k),
            )
        )  # fmt: skip
        self._use(out, "f32", writes=True)
        self._use(k, "f32", writes=True)
        self._launch(
            lambda: self._program.qk_norm(
                self._buffer(out), self._buffer(k), q_gain, k_gain, weights.norm_eps, *self._rope(rope),
                self._kv_layer(layer),
            )
        )  # fmt: skip
        if rope is not None:
            self._use(rope.value, "f32")
        self._use(out, "f32")
        self._use(k, "f32")

    def attention(
        self, q: NativeValue, plan: _AttentionPlan, layer: int, *, scale: float, softcap: float = 0.0
    ) -> NativeValue:
        head_dim = self._layout.groups[plan.group].head_dim
        num_heads = q.width // head_dim
        assert plan.num_heads in (None, num_heads), "layers of one KV group differ in query heads"
        plan.num_heads = num_heads
        out = self._value(q.width, "tokens", makes_int8=head_dim % 32 == 0)

        def emit() -> None:
            assert plan.work is not None
            self._program.attention(
                self._buffer(q), self._kv_layer(layer), plan.work, num_heads, scale, softcap, self._output(out)
            )

        self._launch(emit)
        self._use(q, "f32")
        self._use(out, "f32", writes=True)  # the kernel's accumulator, whoever reads it
        return out

    def linear(
        self,
        x: NativeValue,
        weight: _native.WeightMatrix,
        *,
        bias: _native.WeightVector | None = None,
        scale: float = 1.0,
        residual: NativeValue | None = None,
    ) -> NativeValue:
        source = self._input(x, weight)
        out = self._value(weight.rows, x.extent)
        self._launch(
            lambda: self._program.linear(source(), weight, bias, scale, self._buffer(residual), self._buffer(out))
        )
        if residual is not None:
            self._use(residual, "f32")
        self._use(out, "f32", writes=True)
        return out

    def gate_up(
        self, x: NativeValue, gate: _native.WeightMatrix, up: _native.WeightMatrix, activation: Activation
    ) -> NativeValue:
        source = self._input(x, gate, up)
        out = self._value(gate.rows, "tokens", makes_int8=gate.rows % 32 == 0)
        kind = getattr(_native.ActivationFunction, activation)
        self._launch(lambda: self._program.gate_up(source(), gate, up, kind, self._output(out)))
        return out

    def up(
        self,
        x: NativeValue,
        weight: _native.WeightMatrix,
        activation: Activation,
        *,
        bias: _native.WeightVector | None = None,
    ) -> NativeValue:
        source = self._input(x, weight)
        out = self._value(weight.rows, "tokens", makes_int8=weight.rows % 32 == 0)
        kind = getattr(_native.ActivationFunction, activation)
        self._launch(lambda: self._program.up(source(), weight, bias, kind, self._output(out)))
        return out

    def select_logits_rows(self, x: NativeValue) -> NativeValue:
        out = self._value(x.width, "logits")
        self._launch(lambda: self._program.select_logits_rows(self._buffer(x), self._buffer(out)))
        self._use(x, "f32")
        self._use(out, "f32", writes=True)
        return out

    def softcap(self, x: NativeValue, cap: float) -> NativeValue:
        out = self._value(x.width, x.extent)
        self._launch(lambda: self._program.softcap(self._buffer(x), cap, self._buffer(out)))
        self._use(x, "f32")
        self._use(out, "f32", writes=True)
        return out

    # ---- the end of a recording -------------------------------------------------------------------------------------

    def compile(self, output: NativeValue) -> NativeProgram:
        """Place every value in the arena and emit the launches. ``output`` can be read after each replay."""
        self._use(output, "f32", last=len(self._launches))
        arena_bytes = _place(self._storages)
        for emit in self._launches:
            emit()
        self._program.finish(arena_bytes)
        return NativeProgram(self._program, self._buffer(output), output.extent)

    # ---- recording --------------------------------------------------------------------------------------------------

    def _launch(self, emit: Callable[[], None]) -> None:
        self._launches.append(emit)

    def _value(self, width: int, extent: Extent, *, makes_int8: bool = False) -> NativeValue:
        """A value of the launch recorded next."""
        return NativeValue(width, extent, makes_int8, len(self._launches))

    def _use(self, value: NativeValue, form: Form, *, writes: bool = False, last: int | None = None) -> None:
        """The latest launch reads (or writes) this form of the value."""
        last = len(self._launches) - 1 if last is None else last
        if form not in value.storage:
            nbytes = (
                self._max_rows[value.extent] * value.stride * 4
                if form == "f32"
                else _native.quantized_bytes(self._max_rows["tokens"], value.width)
            )
            first = len(self._launches) - 1 if writes else value.launch
            value.storage[form] = _Storage(nbytes, first, last)
            self._storages.append(value.storage[form])
        value.storage[form].last = max(value.storage[form].last, last)

    def _input(self, x: NativeValue, *weights: _native.WeightMatrix) -> Callable[[], _native.Input]:
        """The forms of x these weights consume. A launch that quantizes x is recorded here if its producer cannot."""
        is_float = [w.format.name in _FLOAT_FORMATS for w in weights]
        wants_f32 = self._activations == "f32" or any(is_float)
        wants_int8 = self._activations == "int8" and not all(is_float)
        if wants_int8 and not x.makes_int8 and "int8" not in x.storage:
            self._launch(lambda: self._program.quantize(self._buffer(x), self._quantized(x)))
            self._use(x, "f32")
            self._use(x, "int8", writes=True)
        for form, wanted in (("f32", wants_f32), ("int8", wants_int8)):
            if wanted:
                self._use(x, form, last=len(self._launches))  # type: ignore[arg-type]

        def build() -> _native.Input:
            return _native.Input(
                self._buffer(x) if wants_f32 else _native.Buffer(),
                self._quantized(x) if wants_int8 else _native.QuantizedBuffer(),
            )

        return build

    # ---- emission ---------------------------------------------------------------------------------------------------

    def _buffer(self, value: NativeValue | None) -> _native.Buffer:
        if value is None or "f32" not in value.storage:
            return _native.Buffer()
        extent = getattr(_native.Extent, value.extent)
        return _native.Buffer(value.storage["f32"].offset, value.width, value.stride, extent)

    def _quantized(self, value: NativeValue) -> _native.QuantizedBuffer:
        if "int8" not in value.storage:
            return _native.QuantizedBuffer()
        return _native.QuantizedBuffer(value.storage["int8"].offset, value.width)

    def _output(self, value: NativeValue) -> _native.Output:
        int8 = self._quantized(value) if value.makes_int8 else _native.QuantizedBuffer()
        return _native.Output(self._buffer(value), int8)

    def _rope(self, plan: _RopePlan | None) -> tuple[_native.Buffer, int, _native.RopeStyle]:
        style = getattr(_native.RopeStyle, plan.style if plan else "half_split")
        return self._buffer(plan.value if plan else None), plan.rot_dim if plan else 0, style

    def _kv_layer(self, layer: int) -> _native.KvLayer:
        layout = self._layout
        group = layout.group_of(layer)
        g = layout.groups[group]
        dtypes = (getattr(_native.KvDtype, name.upper()) for name in (layout.key_dtype(group), layout.dtype))
        return _native.KvLayer(
            self._storage.pool, *layout.layer_offsets(layer), layout.block_bytes, group, layout.tokens_per_block(group),
            g.num_kv_heads, g.head_dim, g.window or 0, *dtypes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayProfile:
    """Where one replay's time went, in seconds. ops: the launches' names. elapsed_s: float64 [ops], from the end of the op
    before to its own. busy_s: float64 [threads, ops], of a thread's own tiles; what is left of elapsed_s it waited."""

    ops: tuple[str, ...]
    elapsed_s: NDArray[np.float64]
    busy_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """A compiled step program and where its output lies."""

    program: _native.Program
    output: _native.Buffer
    extent: Extent

    @property
    def isa(self) -> str:
        """The kernel set that runs."""
        return str(self.program.isa)

    def replay(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Run one step. Returns float32 [T or L, width]: a read-only view, overwritten by the next replay."""
        self.program.replay(batch.token_ids, batch.positions, batch.query_start, batch.logits_rows, _groups(batch))
        rows = len(batch.token_ids if self.extent == "tokens" else batch.logits_rows)
        return self.program.value(self.output, rows)

    def profile(self, batch: ForwardBatch) -> ReplayProfile:
        """Run one step as ``replay`` does, with clocks."""
        elapsed_s, busy_s = self.program.profile(
            batch.token_ids, batch.positions, batch.query_start, batch.logits_rows, _groups(batch)
        )
        return ReplayProfile(tuple(self.program.ops), np.array(elapsed_s), np.array(busy_s))


def _groups(batch: ForwardBatch) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    return list(zip(batch.block_tables, batch.slot_mapping, strict=True))


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _place(storages: Sequence[_Storage]) -> int:
    """Give each storage the lowest offset not taken while it lives; returns the bytes of the arena."""
    alive: list[_Storage] = []
    end = 0
    for storage in sorted(storages, key=lambda s: (s.first, -s.nbytes)):
        alive = sorted((s for s in alive if s.last >= storage.first), key=lambda s: s.offset)
        offset = 0
        for other in alive:
            if offset + storage.nbytes <= other.offset:
                break
            offset = max(offset, other.offset + other.nbytes)
        storage.offset = offset
        alive.append(storage)
        end = max(end, offset + storage.nbytes)
    return end
