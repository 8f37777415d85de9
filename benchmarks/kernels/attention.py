"""Attention alone, out of memory: how fast KV streams in decode, what a dtype gains, what a prefill chunk costs.

python benchmarks/kernels/attention.py [--context 4096,16384] [--heads 32] [--kv-heads 8] [--head-dim 64]
       [--dtypes f16,int8] [--tokens 1] [--block-size 16] [--threads N] [--isa SET] [--runs 9] [--json]

The dtypes take turns, with a sample of the read bandwidth and of the f32 multiply-adds before and after each. Every layer has
KV of its own, enough of them that nothing stays in a cache. JSON fields: src/hotloop/telemetry/schema.toml, bench.attention.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from hotloop import _native
from hotloop.bench.timing import Ceiling, Probe
from hotloop.config import KVDtype
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.storage import KVStorage
from hotloop.machine import default_num_threads
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.ops.native import NativeOps, NativeProgram


@dataclass(frozen=True, slots=True)
class Shape:
    """One request whose last ``tokens`` positions attend to all of ``context``."""

    heads: int
    kv_heads: int
    head_dim: int
    context: int
    tokens: int
    block_size: int


class Subject:
    """Attention of one KV dtype over several layers, ready to be timed."""

    def __init__(self, shape: Shape, dtype: KVDtype, team: _native.ThreadTeam, args: argparse.Namespace, isa: str) -> None:
        precise_keys = bool(args.precise_keys)
        one = KVLayout((KVGroup((0,), shape.kv_heads, shape.head_dim, precise_keys=precise_keys),), shape.block_size, dtype)
        self.layer_bytes = shape.context * one.token_bytes(0)
        self.num_layers = max(2, (args.cycled_mib << 20) // self.layer_bytes) if shape.tokens == 1 else 2
        self.dtype = one.dtype_name
        group = KVGroup(tuple(range(self.num_layers)), shape.kv_heads, shape.head_dim, precise_keys=precise_keys)
        layout = KVLayout((group,), shape.block_size, dtype)
        num_blocks = -(-shape.context // shape.block_size)
        self._storage = storage = KVStorage.allocate(layout, num_blocks)  # the program refers to its memory
        noise = np.random.default_rng(0).normal(size=1 << 19).astype(np.float32 if dtype == "f32" else np.float16)
        pool = storage.pool.view(noise.dtype)  # f16 noise read as bf16, also as a scale, is a small number
        for begin in range(0, pool.size, noise.size):
            pool[begin : begin + noise.size] = noise[: pool.size - begin]
        self._program = self._record(shape, storage, team, isa)
        self._is_attention = np.array([name == "attention" for name in self._program.program.ops])
        self._batch = _batch(shape)

    def _record(self, shape: Shape, storage: KVStorage, team: _native.ThreadTeam, isa: str) -> NativeProgram:
        ops = NativeOps(storage, team, isa=isa, max_tokens=shape.tokens, max_logits=1)
        width = shape.heads * shape.head_dim
        rows = np.random.default_rng(1).normal(size=(64, width)).astype(np.float32)
        q = ops.embed(_native.WeightMatrix(_native.WeightFormat.F32, 64, width, rows.view(np.uint8).ravel(), team))
        plan = ops.plan_attention(0)
        for layer in range(self.num_layers):
            out = ops.attention(q, plan, layer, scale=shape.head_dim**-0.5)
        return ops.compile(out)

    def run_s(self) -> float:
        """Median seconds of the layers of one replay."""
        return float(np.median(self._program.profile(self._batch).elapsed_s[self._is_attention]))


def _batch(shape: Shape) -> ForwardBatch:
    num_blocks = -(-shape.context // shape.block_size)
    table = np.random.default_rng(2).permutation(num_blocks).astype(np.int32)
    return ForwardBatch(
        token_ids=np.arange(shape.tokens, dtype=np.int32) % 64,
        positions=np.arange(shape.context - shape.tokens, shape.context, dtype=np.int32),
        query_start=np.array([0, shape.tokens], np.int32),
        seq_lens=np.array([shape.context], np.int32),
        logits_rows=np.array([], np.int32),
        block_tables=(table[None],),
        slot_mapping=(np.zeros(shape.tokens, np.int64),),
    )


def measure(subjects: Sequence[Subject], runs: int, probe: Probe) -> list[list[tuple[float, Ceiling]]]:
    """Seconds of a layer and the mean ceiling next to it, per subject and run; the subjects take turns."""
    for subject in subjects:
        subject.run_s()
    results: list[list[tuple[float, Ceiling]]] = [[] for _ in subjects]
    before = probe.sample()
    for _ in range(runs):
        for subject, result in zip(subjects, results, strict=True):
            seconds = subject.run_s()
            after = probe.sample()
            result.append(
                (
                    seconds,
                    Ceiling(
                        (before.read_bytes_per_s + after.read_bytes_per_s) / 2,
                        (before.peak_flops_per_s + after.peak_flops_per_s) / 2,
                    ),
                )
            )
            before = after
    return results


def report(shape: Shape, subjects: Sequence[Subject], args: argparse.Namespace, probe: Probe) -> None:
    results = measure(subjects, args.runs, probe)
    visible = shape.tokens * shape.context - shape.tokens * (shape.tokens - 1) // 2
    flops = 4 * shape.heads * shape.head_dim * visible
    first = [s for s, _ in results[0]]
    for subject, result in zip(subjects, results, strict=True):
        seconds = [s for s, _ in result]
        low, high = np.percentile(seconds, [10, 90])
        fields = {
            "bench": "attention",
            "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "block_size": shape.block_size,
            "context_tokens": shape.context, "query_tokens": shape.tokens, "kv_dtype": subject.dtype,
            "threads": probe.threads, "isa": probe.isa,
            "attention_s_median": statistics.median(seconds), "attention_s_spread": float(high - low),
            "kv_bytes": subject.layer_bytes, "attention_flops": flops,
            "read_bandwidth_ceiling_bytes_per_s": statistics.median(c.read_bytes_per_s for _, c in result),
            "mbu": statistics.median(subject.layer_bytes / s / c.read_bytes_per_s for s, c in result),
            "peak_flops_per_s": statistics.median(c.peak_flops_per_s for _, c in result),
            "mfu": statistics.median(flops / s / c.peak_flops_per_s for s, c in result),
            "time_to_first_dtype": statistics.median(s / f for s, f in zip(seconds, first, strict=True)),
        }  # fmt: skip
        text = (
            f"context {shape.context:6d}  {subject.dtype:13s} {fields['attention_s_median'] * 1e6:9.0f} us a layer, "
            f"{subject.layer_bytes / fields['attention_s_median'] / 1e9:5.1f} GB/s = {fields['mbu']:4.0%} of "
            f"{fields['read_bandwidth_ceiling_bytes_per_s'] / 1e9:.1f}, {fields['mfu']:4.0%} of the f32 peak, "
            f"{fields['time_to_first_dtype']:.2f} x the time of {subjects[0].dtype}"
        )
        print(text, file=sys.stderr if args.json else sys.stdout)
        if args.json:
            print(json.dumps(fields))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", default="4096,16384")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--dtypes", default="f16,int8", help=f"of {', '.join(get_args(KVDtype))}")
    parser.add_argument("--precise-keys", action="store_true", help="int8 with f16 keys, as for models with a K bias")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--cycled-mib", type=int, default=400, help="of K and V: more than the caches, or less")
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--isa", default="")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    isa = choose_kernel_set(args.isa)
    probe = Probe(args.threads, isa, "f32")
    print(f"ceilings with {args.threads} threads, {isa}: {probe.sample()}", file=sys.stderr)
    team = _native.ThreadTeam(args.threads)
    for context in map(int, args.context.split(",")):
        tokens = min(args.tokens, context)
        shape = Shape(args.heads, args.kv_heads, args.head_dim, context, tokens, args.block_size)
        report(shape, [Subject(shape, d, team, args, isa) for d in args.dtypes.split(",")], args, probe)


if __name__ == "__main__":
    main()
