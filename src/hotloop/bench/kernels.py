"""Linear kernels alone: every kind of matrix of a model, times a few tokens or many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.bench.options import BenchOptions, Report
from hotloop.bench.timing import Block, Probe, figures, peak_kind, shares, timed_blocks
from hotloop.config import EngineConfig
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.storage import KVStorage
from hotloop.models.registry import load_model_spec
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.ops.native import NativeOps, NativeProgram, NativeWeights
from hotloop.weights.model_file import ModelFile

DEFAULT_PASSES = 5

_CYCLED_BYTES = 256 << 20  # a pass reads this much, so that no matrix is still in a cache when its turn comes again


@dataclass(frozen=True, slots=True)
class MatrixKind:
    """Matrices of one format and shape; names: the tensors."""

    format: str
    rows: int
    cols: int
    nbytes: int
    names: tuple[str, ...]


def matrix_kinds(model_file: ModelFile) -> list[MatrixKind]:
    """The kinds of matrices that a step multiplies with, largest share of the model first."""
    model = load_model_spec(model_file)
    names: dict[tuple[str, int, int], list[str]] = {}
    for name, shape in model.tensor_shapes.items():
        if len(shape) == 2 and (name != "token_embd.weight" or model.config.tied_embeddings):
            names.setdefault((model_file.tensors[name].format, shape[0], shape[1]), []).append(name)
    kinds = [MatrixKind(*key, model_file.tensors[group[0]].nbytes, tuple(group)) for key, group in names.items()]
    return sorted(kinds, key=lambda kind: -kind.nbytes * len(kind.names))


def bench_kernels(model_file: ModelFile, options: BenchOptions, report: Report) -> Iterator[dict[str, Any]]:
    """One JSON object (schema.toml, bench.kernels) per kind of matrix and batch size: the time of one linear op, quantized
    input to f32 output. ``tokens`` is the number of timed passes over at least 256 MB of such matrices."""
    config = EngineConfig(threads=options.threads, isa=options.isa)
    isa = choose_kernel_set(config.isa)
    team = _native.ThreadTeam(config.num_threads)
    report(f"ceiling {Probe(team.size, isa, 'int8').sample()} int8; {team.size} threads, kernels {isa}")
    for kind in matrix_kinds(model_file):
        probe = Probe(team.size, isa, peak_kind(kind.format))
        program = _program(model_file, kind, team, isa, max(options.batches))
        is_linear = np.array(program.program.ops) == "linear"
        for size in options.batches:
            blocks = _time_ops(program, is_linear, _batch(size), options, probe)
            flops = 2 * kind.rows * kind.cols * size
            f = figures(blocks, kind.nbytes, flops)
            report(
                f"{kind.format:<7} {kind.rows:>6} x {kind.cols:<6} batch {size:<3} {f.median_s * 1e6:9.1f} us "
                f"+- {f.spread_s * 1e6:.1f}  {shares(f, kind.nbytes, flops)}"
            )
            yield {
                "bench": "kernels",
                "model": options.model,
                "batch": size,
                "format": kind.format,
                "rows": kind.rows,
                "cols": kind.cols,
                "threads": team.size,
                "isa": isa,
                "matrix_s_median": f.median_s,
                "matrix_s_spread": f.spread_s,
                "matrix_bytes": kind.nbytes,
                "matrix_flops": flops,
                "read_bandwidth_ceiling_bytes_per_s": f.ceiling.read_bytes_per_s,
                "mbu": f.mbu,
                "peak_kind": probe.kind,
                "peak_flops_per_s": f.ceiling.peak_flops_per_s,
                "mfu": f.mfu,
            }


def _time_ops(
    program: NativeProgram, is_linear: NDArray[np.bool_], batch: ForwardBatch, options: BenchOptions, probe: Probe
) -> list[Block]:
    """Blocks whose runs are the seconds of single linear ops, by the clocks of the profile."""
    passes_s: list[NDArray[np.float64]] = []

    def run(_: int) -> None:
        passes_s.append(program.profile(batch).elapsed_s[is_linear])

    blocks = timed_blocks(run, options.tokens or DEFAULT_PASSES, options.runs, probe)
    ends = np.cumsum([len(block.runs_s) + 1 for block in blocks])  # each block has a warm-up first
    return [
        Block(tuple(np.concatenate(passes_s[end - len(block.runs_s) : end]).tolist()), block.ceiling)
        for end, block in zip(ends, blocks, strict=True)
    ]


def _program(model_file: ModelFile, kind: MatrixKind, team: _native.ThreadTeam, isa: str, max_tokens: int) -> NativeProgram:
    """Every matrix of the kind times the same random activations; copies make up for a small model."""
    copies = max(1, _CYCLED_BYTES // (kind.nbytes * len(kind.names)))
    unused = KVLayout((KVGroup((0,), 1, 16),), 1, "f16")
    ops = NativeOps(KVStorage.allocate(unused, 1), team, isa=isa, max_tokens=max_tokens, max_logits=1)
    rows = np.random.default_rng(0).normal(size=(64, kind.cols)).astype(np.float32)
    x = ops.embed(_native.WeightMatrix(_native.WeightFormat.F32, 64, kind.cols, rows.view(np.uint8).ravel(), team))
    for _ in range(copies):
        weights = NativeWeights(model_file, kind.names, team)  # repacks anew: memory of its own
        for name in kind.names:
            out = ops.linear(x, weights.matrix(name, kind.rows, kind.cols))
    return ops.compile(out)


def _batch(num_tokens: int) -> ForwardBatch:
    return ForwardBatch(
        token_ids=np.arange(num_tokens, dtype=np.int32) % 64,
        positions=np.arange(num_tokens, dtype=np.int32),
        query_start=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        logits_rows=np.array([], np.int32),
        block_tables=(),
        slot_mapping=(),
    )
