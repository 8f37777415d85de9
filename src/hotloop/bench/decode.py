"""Decode: steps of one token for each of a batch's requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hotloop.bench.batches import MAX_TOKENS, BatchMaker, Span, load_runner
from hotloop.bench.options import BenchOptions, Report, model_peak_kind
from hotloop.bench.profile import profile_step, profile_table, weight_bytes_by_kind
from hotloop.bench.timing import Probe, figures, shares, timed_blocks
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import InvalidRequestError
from hotloop.ops.batch import ForwardBatch
from hotloop.telemetry.traffic import flops_per_step, weight_bytes_per_step
from hotloop.weights.model_file import ModelFile

DEFAULT_CONTEXT_TOKENS = 128
DEFAULT_TOKENS = 64


def bench_decode(
    model_file: ModelFile, options: BenchOptions, report: Report, *, profile: bool = False
) -> Iterator[dict[str, Any]]:
    """One JSON object (schema.toml, bench.decode) per batch size. Token i of a request is computed at position
    context + i; the KV cache before it holds noise. profile: then also report the time by kind of op.

    Raises: InvalidRequestError for a batch or a context that cannot be computed.
    """
    if max(options.batches) > MAX_TOKENS:
        raise InvalidRequestError(f"--batch {max(options.batches)} is more than the {MAX_TOKENS} tokens of a step")
    context = DEFAULT_CONTEXT_TOKENS if options.context_tokens is None else options.context_tokens
    num_steps = DEFAULT_TOKENS if options.tokens is None else options.tokens
    runner = load_runner(model_file, max(options.batches), context + num_steps, options.threads, options.isa)
    probe = Probe(runner.num_threads, runner.isa, model_peak_kind(model_file))
    report(
        f"ceiling {probe.sample()} {probe.kind}; {runner.num_threads} threads, kernels {runner.isa}, "
        f"{context} tokens of context"
    )
    layout = runner.storage.layout
    weight_bytes = weight_bytes_per_step(runner.model, model_file)
    for size in options.batches:
        maker = BatchMaker(runner, size, context + num_steps)
        batches = [maker.batch([Span(r, p, p + 1) for r in range(size)]) for p in range(context, context + num_steps)]
        kv_bytes = sum(layout.bytes_read(batch.seq_lens.tolist()) for batch in batches) / num_steps
        flops = sum(flops_per_step(runner.model, batch.positions.tolist(), size) for batch in batches) / num_steps

        def step(i: int, batches: Sequence[ForwardBatch] = batches) -> None:
            runner.forward(batches[i])

        f = figures(timed_blocks(step, num_steps, options.runs, probe), weight_bytes + kv_bytes, flops)
        report(
            f"batch {size:<3} step {f.median_s * 1e3:8.2f} ms +- {f.spread_s * 1e3:.2f} {size / f.median_s:8.1f} tokens/s  "
            f"{shares(f, weight_bytes + kv_bytes, flops)}"
        )
        if profile:
            for line in _profile(model_file, runner, batches, kv_bytes):
                report("  " + line)
        yield {
            "bench": "decode",
            "model": options.model,
            "batch": size,
            "context_tokens": context,
            "threads": runner.num_threads,
            "isa": runner.isa,
            "decode_tokens_per_s": size / f.median_s,
            "step_s_median": f.median_s,
            "step_s_spread": f.spread_s,
            "weight_bytes_per_step": weight_bytes,
            "kv_bytes_per_step": round(kv_bytes),
            "flops_per_step": round(flops),
            "read_bandwidth_ceiling_bytes_per_s": f.ceiling.read_bytes_per_s,
            "mbu": f.mbu,
        }


def _profile(model_file: ModelFile, runner: ModelRunner, batches: Sequence[ForwardBatch], kv_bytes: float) -> list[str]:
    read_bytes = {**weight_bytes_by_kind(runner.model, model_file), "attention": round(kv_bytes)}
    return profile_table(profile_step(runner.program(), batches, read_bytes))
