"""`hotloop bench kernels|decode|prefill MODEL`: speed, held against ceilings sampled next to each timed block;
`hotloop bench serve URL`: a server under load."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from hotloop.cli import bench_serve
from hotloop.cli import options as opt


class Bench(StrEnum):
    kernels = "kernels"
    decode = "decode"
    prefill = "prefill"


_HELP = {
    Bench.kernels: "The linear kernels alone, memory cold.",
    Bench.decode: "Decode steps.",
    Bench.prefill: "Prompts.",
}
_RULE = (
    "First the machine's ceilings, then per batch size the median and spread of the time, and its share of the ceilings "
    "sampled next to it."
)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _add_command(bench: Bench) -> None:
    @app.command(bench.value, help=f"{_HELP[bench]} {_RULE}", short_help=_HELP[bench])
    def command(
        model: opt.Model,
        batch: Annotated[str, typer.Option(help="Numbers of requests, each measured.", metavar="N,N,...")] = "1",
        context: Annotated[
            int | None, typer.Option(help="Tokens in the KV cache before. Default: 128 for decode, 0 for prefill.")
        ] = None,
        tokens: Annotated[
            int | None,
            typer.Option(help="Timed steps of decode (default 64), tokens of a prompt (512), passes of kernels (5)."),
        ] = None,
        runs: Annotated[int, typer.Option(help="Timed blocks, with a sample of the ceiling between two.")] = 5,
        profile: Annotated[bool, typer.Option("--profile", help="Then the time of a step by kind of op.")] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print one JSON object per batch size; the text goes to stderr.")
        ] = False,
        threads: opt.Threads = None,
        quantize: opt.Quantize = None,
        isa: opt.Isa = None,
        yes: opt.Yes = False,
    ) -> None:
        import json
        import os

        from hotloop.bench.decode import bench_decode
        from hotloop.bench.kernels import bench_kernels
        from hotloop.bench.options import BenchOptions
        from hotloop.bench.prefill import bench_prefill
        from hotloop.cli.models import require_model
        from hotloop.cli.progress import TerminalReporter
        from hotloop.weights.quantized_model import open_quantized

        def report(line: str) -> None:
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

        if isa is None:
            isa = os.environ.get("HOTLOOP_ISA", "")
        options = BenchOptions(model, _sizes(batch), context, tokens, runs, threads, isa)
        with (
            TerminalReporter() as reporter,
            open_quantized(
                require_model(model, yes=yes), quantize, threads=threads, progress=reporter.progress
            ) as model_file,
        ):
            if bench is Bench.kernels:
                results = bench_kernels(model_file, options, report)
            elif bench is Bench.decode:
                results = bench_decode(model_file, options, report, profile=profile)
            else:
                results = bench_prefill(model_file, options, report, profile=profile)
            for result in results:
                if as_json:
                    print(json.dumps(result), flush=True)


for _bench in Bench:
    _add_command(_bench)
app.command("serve")(bench_serve.command)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        from hotloop.errors import InvalidRequestError

        raise InvalidRequestError(f"--batch is {text!r:.40}; give numbers such as 1,4,32") from None
