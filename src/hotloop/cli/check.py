"""`hotloop check MODEL`: does this machine compute a model right?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options as opt

if TYPE_CHECKING:
    from hotloop.bench.check import CheckResult


def command(
    model: opt.Model,
    tokens: Annotated[int, typer.Option(min=2, max=64, help="Positions to compare.")] = 48,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; the text goes to stderr.")] = False,
    quantize: opt.Quantize = None,
    threads: opt.Threads = None,
    isa: Annotated[
        str | None, typer.Option(help="Kernel set; compared with scalar. Default: all that this machine can run.")
    ] = None,
    yes: opt.Yes = False,
) -> None:
    """Compare a model's logits on this machine with the reference op set, and all kernel sets with each other.

    Exit status 0 if all is within its limit, 1 if not. Of large models the first layers are computed. What is compared, and
    where the limits come from: docs/quantization.md.
    """
    import dataclasses
    import json

    from hotloop.bench.check import check_model
    from hotloop.bench.quality import quality_text
    from hotloop.cli.json_values import finite
    from hotloop.cli.models import require_model
    from hotloop.text.tokenizer import Tokenizer
    from hotloop.weights.quantized_model import open_quantized

    def tell(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    path = require_model(model, yes=yes)
    with open_quantized(path, quantize, threads=threads) as model_file:
        ids = Tokenizer.of_model(model_file).encode(quality_text())[:tokens]
        result = check_model(model_file, ids, threads=threads, isa=isa or "", report=tell)
    for check in result.checks:
        relation = "of" if check.limit == 1 else "at most"
        tell(
            f"{'pass' if check.passed else 'FAIL'}  {check.name:<34} {check.value:<12.6g} {relation} {check.limit:.6g}"
        )
    tell(
        f"{'pass' if result.passed else 'FAIL'}: {result.positions} positions, {result.layers} of {result.all_layers} layers, "
        f"kernel sets {', '.join(result.isas)}; int8 activations cost {result.int8_kl_nats:.4f} nats here"
    )
    if not result.passed:
        tell(_cause(result))
    if as_json:
        facts = {"path": str(path), "passed": result.passed, **dataclasses.asdict(result)}
        print(json.dumps(finite(facts), allow_nan=False))
    raise typer.Exit(0 if result.passed else 1)


def _cause(result: CheckResult) -> str:
    absurd = result.absurd_weight
    if absurd is None and result.finite:
        return "This machine does not compute this model right; please report it"
    what = "logits are infinite or no number"
    if absurd is not None:
        what = f"weights are absurd, {absurd.tensor} holds {absurd.value:.3g}"
    return f"The cause is the model, on any machine: its {what}; the file is damaged, or wrong"
