"""Prefill: prompts computed in steps of as many tokens as the engine takes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hotloop.bench.batches import BatchMaker, Span, load_runner
from hotloop.bench.options import BenchOptions, Report, model_peak_kind
from hotloop.bench.profile import profile_step, profile_table, weight_bytes_by_kind
from hotloop.bench.timing import Probe, figures, shares, timed_blocks
from hotloop.ops.batch import ForwardBatch
from hotloop.telemetry.traffic import flops_per_step, weight_bytes_per_step
from hotloop.weights.model_file import ModelFile

DEFAULT_TOKENS = 512


def bench_prefill(
    model_file: ModelFile, options: BenchOptions, report: Report, *, profile: bool = False
) -> Iterator[dict[str, Any]]:
    """One JSON object (schema.toml, bench.prefill) per batch size: ``batch`` prompts after ``context`` cached tokens,
    packed into full steps, logits for the last token of each. profile: then also report the first step's time by op.

    Raises: InvalidRequestError for a context that the model does not have.
    """
    context = options.context_tokens or 0
    tokens = DEFAULT_TOKENS if options.tokens is None else options.tokens
    runner = load_runner(model_file, max(options.batches), context + tokens, options.threads, options.isa)
    probe = Probe(runner.num_threads, runner.isa, model_peak_kind(model_file))
    report(
        f"ceiling {probe.sample()} {probe.kind}; {runner.num_threads} threads, kernels {runner.isa}, "
        f"prompts of {tokens} tokens after {context}, {runner.max_tokens} tokens per step"
    )
    for size in options.batches:
        maker = BatchMaker(runner, size, context + tokens)
        steps = [maker.batch(spans) for spans in pack(size, context, context + tokens, runner.max_tokens)]
        flops = sum(flops_per_step(runner.model, s.positions.tolist(), len(s.logits_rows)) for s in steps)
        weight_bytes = weight_bytes_per_step(runner.model, model_file) * len(steps)

        def run(_: int, steps: Sequence[ForwardBatch] = steps) -> None:
            for step in steps:
                runner.forward(step)

        f = figures(timed_blocks(run, options.runs, options.runs, probe), weight_bytes, flops)
        report(
            f"batch {size:<3} prefill {f.median_s * 1e3:8.1f} ms +- {f.spread_s * 1e3:.1f} "
            f"{size * tokens / f.median_s:8.1f} tokens/s  {shares(f, weight_bytes, flops)}"
        )
        if profile:
            for line in profile_table(
                profile_step(runner.program(), steps[:1] * 3, weight_bytes_by_kind(runner.model, model_file))
            ):
                report("  " + line)
        yield {
            "bench": "prefill",
            "model": options.model,
            "batch": size,
            "context_tokens": context,
            "prompt_tokens": tokens,
            "threads": runner.num_threads,
            "isa": runner.isa,
            "prefill_tokens_per_s": size * tokens / f.median_s,
            "prefill_s_median": f.median_s,
            "prefill_s_spread": f.spread_s,
            "flops_per_prefill": flops,
            "peak_kind": probe.kind,
            "peak_flops_per_s": f.ceiling.peak_flops_per_s,
            "mfu": f.mfu,
        }


def pack(num_requests: int, begin: int, end: int, max_tokens: int) -> list[list[Span]]:
    """Positions [begin, end) of every request, in order, in steps of ``max_tokens`` tokens."""
    steps: list[list[Span]] = [[]]
    room = max_tokens
    for request in range(num_requests):
        position = begin
        while position < end:
            if room == 0:
                steps.append([])
                room = max_tokens
            stop = min(end, position + room)
            steps[-1].append(Span(request, position, stop, wants_logits=stop == end))
            room -= stop - position
            position = stop
    return steps
