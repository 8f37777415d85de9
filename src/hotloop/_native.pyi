"""hotloop's C++ core: kernels, thread team, step programs."""

from collections.abc import Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def usable_isas() -> list[str]:
    """Kernel sets this machine can run, best first."""

def experimental_isas() -> list[str]:
    """Kernel sets that have run in an emulator only, never on real hardware."""

def self_check(isa: str, broken: str = '', seed: int = 1) -> str | None:
    """
    What this kernel set computes differently from the scalar one on small inputs, or None; takes well under 50 ms. broken, for tests of the check: linear, rms_norm or exp is replaced by one that errs in one bit.
    """

class WeightFormat(enum.Enum):
    F32 = 0

    F16 = 1

    BF16 = 2

    Q4_0 = 3

    Q4_1 = 4

    Q5_0 = 5

    Q5_1 = 6

    Q8_0 = 7

    Q2_K = 8

    Q3_K = 9

    Q4_K = 10

    Q5_K = 11

    Q6_K = 12

    IQ4_NL = 13

    IQ4_XS = 14

    MXFP4 = 15

class KvDtype(enum.Enum):
    F32 = 0

    F16 = 1

    BF16 = 2

    INT8 = 3

class ActivationFunction(enum.Enum):
    silu = 0

    gelu_tanh = 1

class RopeStyle(enum.Enum):
    interleaved = 0

    half_split = 1

class FloatEnvironment:
    """
    Between enter and exit this thread has the floating-point environment of kernels.
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...

class ThreadTeam:
    def __init__(self, num_threads: int) -> None: ...

    @property
    def size(self) -> int: ...

class WeightMemory:
    """One block of memory for many repacked matrices; see matrix_bytes."""

    def __init__(self, nbytes: int) -> None: ...

def matrix_bytes(format: WeightFormat, rows: int, cols: int) -> int:
    """Bytes that a repacked matrix takes of a WeightMemory."""

def release_free_memory() -> None:
    """
    Hand memory that was freed back to the system, where the C library would keep it.
    """

class WeightMatrix:
    def __init__(self, format: WeightFormat, rows: int, cols: int, src: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], team: ThreadTeam) -> None: ...

    @staticmethod
    def read(format: WeightFormat, rows: int, cols: int, fd: int, offset: int, team: ThreadTeam, memory: WeightMemory) -> WeightMatrix:
        """
        Repacked from an open file, offset in bytes. Raises RuntimeError if the file cannot be read or ends early.
        """

    @staticmethod
    def empty(format: WeightFormat, rows: int, cols: int, memory: WeightMemory) -> WeightMatrix:
        """To be filled; until then its values are undefined."""

    def fill(self, first: int, src: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], team: ThreadTeam) -> None:
        """
        Repack rows from `first` on: whole row blocks (of row_block), or up to the last row.
        """

    @staticmethod
    def row_block() -> int:
        """Rows that are repacked together."""

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...

    @property
    def format(self) -> WeightFormat: ...

    def part(self, begin: int, rows: int) -> WeightMatrix:
        """Rows [begin, begin + rows) in the same memory; begin: a multiple of 8."""

    @property
    def nbytes(self) -> int: ...

class WeightVector:
    def __init__(self, src: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def part(self, begin: int, size: int) -> WeightVector:
        """Elements [begin, begin + size) in the same memory."""

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

def repack(format: str, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, cols: int) -> NDArray[numpy.uint8]:
    """
    GGUF bytes (uint8 [rows * row_bytes]) of a matrix [rows, cols] -> repacked bytes (docs/weight-layouts.md).
    """

def quantize_rows(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> tuple[NDArray[numpy.int8], NDArray[numpy.float32], NDArray[numpy.float32], NDArray[numpy.int16]]:
    """
    x: float32 [tokens, cols] -> (codes int8 [tokens, cols], scale float32 [tokens, cols / 32], scaled_sum float32 [tokens, cols / 32], sum16 int16 [tokens, cols / 16]).
    """

def linear(isa: str, format: str, packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, cols: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], activations: str = 'int8', row_blocks: tuple[int, int] | None = None, tokens: tuple[int, int] | None = None) -> NDArray[numpy.float32]:
    """
    x: float32 [tokens, cols] times the repacked matrix -> float32 [tokens, 8 * row blocks], padding rows too. activations: 'int8' or 'f32'; row_blocks and tokens: half-open ranges, all by default.
    """

def dequantize_rows(isa: str, format: str, packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, cols: int) -> NDArray[numpy.float32]:
    """The repacked matrix as float32 [rows, cols]."""

def exp(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

def log(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

def rms_norm(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], gain: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float) -> NDArray[numpy.float32]: ...

def layer_norm(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], gain: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> NDArray[numpy.float32]: ...

def rope(isa: str, head: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], cos: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], style: RopeStyle) -> NDArray[numpy.float32]: ...

def store_f16(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint16]:
    """IEEE binary16 bit patterns, as the KV cache stores them."""

def store_bf16(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint16]:
    """bfloat16 bit patterns, as the KV cache stores them."""

def quantize_kv(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], group_size: int) -> tuple[NDArray[numpy.int8], NDArray[numpy.uint16]]:
    """int8 codes and bf16 scales, as the KV cache stores them."""

def gated(isa: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], activation: ActivationFunction) -> NDArray[numpy.float32]: ...

def activate(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, activation: ActivationFunction) -> NDArray[numpy.float32]: ...

def add(isa: str, a: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

def scale(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], factor: float) -> NDArray[numpy.float32]: ...

def softcap(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], cap: float) -> NDArray[numpy.float32]: ...

def append_kv(isa: str, kv: KvLayer, is_key: bool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """x: float32 [tokens, num_kv_heads * head_dim]."""

def attention(isa: str, q: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kv: KvLayer, block_table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scale: float, softcap: float, tokens_per_call: int, heads_per_call: int, spans_per_call: int) -> NDArray[numpy.float32]:
    """
    float32 [tokens, heads * head_dim]. spans_per_call: 0 for whole rows, else partials of so many spans and a merge.
    """

def gumbel(isa: str, seed: int, position: int, choice: int, stream: int, first_id: int, n: int) -> NDArray[numpy.float32]: ...

def log_sum_exp(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[float, float]:
    """(max, log(sum(exp(x - max)))): logprob = (x - max) - log_sum."""

def variance(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top: float) -> float:
    """Of the finite ones of x; top: the largest."""

def rope_cos_sin(positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], inv_freq: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], attention_factor: float) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32]]:
    """cos and sin, float32 [positions, inv_freq]."""

def measure_read_bandwidth(threads: int, size_bytes: int, seconds: float, streams: int = 0) -> list[float]:
    """Samples in bytes per second."""

def measure_peak(isa: str, kind: str, threads: int, seconds: float) -> list[float]:
    """Samples in operations per second; a multiply-add is two."""

class DrawParams:
    """What drawing needs to know of a request, the same for all its tokens."""

    def __init__(self, *, temperature: float, top_n_sigma: float = 0.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0, typical_p: float = 1.0, xtc_probability: float = 0.0, xtc_threshold: float = 0.1, mirostat: bool = False, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0, choice: int = 0, num_logprobs: int = -1, processed_logprobs: bool = False) -> None: ...

    @property
    def temperature(self) -> float: ...

    @property
    def top_n_sigma(self) -> float: ...

    @property
    def min_p(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def typical_p(self) -> float: ...

    @property
    def xtc_probability(self) -> float: ...

    @property
    def xtc_threshold(self) -> float: ...

    @property
    def mirostat(self) -> bool: ...

    @property
    def mirostat_tau(self) -> float: ...

    @property
    def mirostat_eta(self) -> float: ...

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...

    @property
    def seed(self) -> int: ...

    @property
    def choice(self) -> int: ...

    @property
    def num_logprobs(self) -> int: ...

    @property
    def processed_logprobs(self) -> bool: ...

class DrawStatus(enum.Enum):
    drawn = 0

    broken_logits = 1

    nothing_left = 2

    no_memory = 3

class Sampler:
    def __init__(self, isa: str, team: ThreadTeam | None = None) -> None: ...

    def draw(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], params: Sequence[DrawParams], logits_rows: Sequence[int], positions: Sequence[int], mirostat_mus: Sequence[float], edits: Sequence[tuple[int, Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]]) -> tuple[list[int], list[tuple[int, float, int, list[tuple[int, float]]]], list[tuple[int, float]], list[tuple[int, DrawStatus, int]]]:
        """
        Token ids of all rows; (row, logprob, rank, top) of those that want logprobs; (row, next mu) of mirostat's; (row, what is wrong, token id). edits: (row, banned, barred, bias ids, bias, seen ids, counts, dry ids, dry, mask).
        """

    def logprobs(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], num_top: int) -> list[tuple[DrawStatus, int, float, int, list[tuple[int, float]]]]:
        """
        Of a given token per row: (what is wrong, token id, raw logprob, rank, top).
        """

def dry_penalties(ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], multiplier: float, base: float, allowed_length: int, max_length: int) -> list[tuple[int, float]]:
    """
    (token id, what to subtract from its logit), ids ascending. allowed_length: 1 or more.
    """

class Extent(enum.Enum):
    tokens = 0

    logits = 1

class Buffer:
    @overload
    def __init__(self) -> None: ...

    @overload
    def __init__(self, offset: int, width: int, stride: int, extent: Extent) -> None: ...

class QuantizedBuffer:
    @overload
    def __init__(self) -> None: ...

    @overload
    def __init__(self, offset: int, cols: int) -> None: ...

class Input:
    def __init__(self, f32: Buffer, quantized: QuantizedBuffer) -> None: ...

class Output:
    def __init__(self, f32: Buffer, quantized: QuantizedBuffer) -> None: ...

def quantized_bytes(rows: int, cols: int) -> int: ...

class KvLayer:
    def __init__(self, pool: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], k_offset: int, v_offset: int, k_scale_offset: int, v_scale_offset: int, block_stride_bytes: int, group: int, block_size: int, num_kv_heads: int, head_dim: int, window: int, k_dtype: KvDtype, v_dtype: KvDtype) -> None: ...

class AttentionWork:
    pass

class Program:
    def __init__(self, isa: str, team: ThreadTeam, max_tokens: int) -> None: ...

    @property
    def isa(self) -> str: ...

    @property
    def arena_bytes(self) -> int: ...

    @property
    def ops(self) -> list[str]: ...

    def embed(self, table: WeightMatrix, scale: float, positions: WeightMatrix | None, out: Buffer) -> None: ...

    def plan_rope(self, inv_freq: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], attention_factor: float, out: Buffer) -> None: ...

    def plan_attention(self, num_heads: int, num_kv_heads: int, head_dim: int, window: int) -> AttentionWork: ...

    def norm(self, x: Buffer, gain: WeightVector, eps: float, residual: Buffer, out: Output) -> None: ...

    def layer_norm(self, x: Buffer, gain: WeightVector, bias: WeightVector, eps: float, out: Output) -> None: ...

    def linear(self, x: Input, weight: WeightMatrix, bias: WeightVector | None, scale: float, residual: Buffer, out: Buffer) -> None: ...

    def qkv(self, x: Input, q: WeightMatrix, k: WeightMatrix, v: WeightMatrix, vectors: Sequence[WeightVector | None], norm_eps: float, rope: Buffer, rot_dim: int, style: RopeStyle, kv: KvLayer, out: Buffer, k_out: Buffer) -> None: ...

    def qk_norm(self, q: Buffer, k: Buffer, q_norm: WeightVector, k_norm: WeightVector, norm_eps: float, rope: Buffer, rot_dim: int, style: RopeStyle, kv: KvLayer) -> None: ...

    def attention(self, q: Buffer, kv: KvLayer, work: AttentionWork, num_heads: int, scale: float, softcap: float, out: Output) -> None: ...

    def gate_up(self, x: Input, gate: WeightMatrix, up: WeightMatrix, activation: ActivationFunction, out: Output) -> None: ...

    def up(self, x: Input, up: WeightMatrix, bias: WeightVector | None, activation: ActivationFunction, out: Output) -> None: ...

    def quantize(self, x: Buffer, out: QuantizedBuffer) -> None: ...

    def select_logits_rows(self, x: Buffer, out: Buffer) -> None: ...

    def softcap(self, x: Buffer, cap: float, out: Buffer) -> None: ...

    def finish(self, arena_bytes: int) -> None: ...

    def replay(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logits_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]]]) -> None: ...

    def profile(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logits_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]]]) -> tuple[list[float], list[list[float]]]:
        """
        replay with clocks: (elapsed seconds per op, then per thread the seconds per op it ran its tiles).
        """

    def value(self, buffer: Buffer, rows: int) -> Annotated[NDArray[numpy.float32], dict(writable=False)]:
        """
        A read-only view [rows, width] of the arena, valid until the next replay.
        """

def quantize_weights(format: WeightFormat, source_format: WeightFormat, src: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], team: ThreadTeam) -> tuple[str, int]:
    """
    Quantizes src, the bytes of whole superblocks, into dst. Returns what is wrong with the weights (''; 'not finite'; 'too large': no f16 scale holds them) and the first element at fault, or the first of its superblock.
    """
