"""`hotloop quantize IN OUT.gguf --type TYPE`: a model in fewer bits, as a GGUF file that others read, too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotloop.cli import options as opt
from hotloop.cli.terminal import printable

if TYPE_CHECKING:
    from hotloop.weights.model_file import ModelFile
    from hotloop.weights.quantized_model import QuantizedModel


def command(
    model: opt.Model,
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type_name: Annotated[
        str,
        typer.Option(
            "--type", "-t", metavar="TYPE", help="q8_0, q6_k, q5_k, q4_k, q4_0, f16, bf16, ...: docs/quantization.md."
        ),
    ],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace OUT if it exists.")] = False,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Also if the weights are quantized already, at a loss.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Then compare both models on a short text: divergence, agreement, perplexity.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; the text goes to stderr.")] = False,
    threads: opt.Threads = None,
    yes: opt.Yes = False,
) -> None:
    """Quantize a model's weights into a new GGUF file; everything else of it is kept.

    MODEL is a GGUF file or a Hugging Face folder with weights of floats. OUT.gguf appears when it is complete.
    """
    import json
    import signal
    import time

    from hotloop.cli.json_values import finite
    from hotloop.cli.models import require_model
    from hotloop.cli.progress import TerminalReporter
    from hotloop.weights.model_writer import write_model
    from hotloop.weights.open_model import open_model
    from hotloop.weights.quantized_model import QuantizedModel

    def tell(line: str) -> None:
        print(printable(line), file=sys.stderr if as_json else sys.stdout, flush=True)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)  # leaves as little behind as Ctrl-C
    start_s = time.monotonic()
    with open_model(require_model(model, yes=yes)) as source:
        with TerminalReporter() as reporter:
            quantized = QuantizedModel(
                source, type_name, threads=threads, requantize=allow_requantize, progress=reporter.progress
            )
            nbytes = write_model(quantized, out, overwrite=force)
        facts = {**_facts(quantized), "path": str(out), "file_bytes": nbytes, "quantize_s": time.monotonic() - start_s}
        for line in _lines(facts):
            tell(line)
        if report:
            facts["quality"] = _quality(source, out, threads, tell)
    if as_json:
        print(json.dumps(finite(facts), allow_nan=False))


def _quality(
    source: ModelFile, out: Path, threads: int | None, tell: Callable[[str], None]
) -> dict[str, float] | dict[str, str]:
    """The report's figures; or the reason why there are none, which is no failure: the file is written."""
    from hotloop.cli.quality_report import quality_report
    from hotloop.errors import HotloopError
    from hotloop.weights.open_model import open_model

    tell("comparing both models on a text (--no-report skips this) ...")
    try:
        with open_model(out) as result:
            figures = quality_report(source, result, threads)
    except HotloopError as error:
        tell(f"not compared: {error}")
        return {"reason": str(error)}
    tell(
        f"on {figures['positions']} tokens: mean KL divergence {figures['mean_kl_nats']:.4f} nats, same best token "
        f"{figures['top1_agreement']:.1%}, perplexity {figures['perplexity']:.3f} (source {figures['source_perplexity']:.3f})"
    )
    return figures


def _facts(model: QuantizedModel) -> dict[str, Any]:
    from collections import Counter

    bytes_by_format: Counter[str] = Counter()
    for info in model.tensors.values():
        bytes_by_format[info.format] += info.nbytes
    return {
        "type": model.quantization.name,
        "source_bytes": sum(info.nbytes for info in model.source.tensors.values()),
        "tensor_bytes_by_format": dict(bytes_by_format.most_common()),
        "fallbacks": {name: model.tensors[name].format for name in model.fallbacks},
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    formats = ", ".join(f"{name} {nbytes / 1e6:.1f} MB" for name, nbytes in facts["tensor_bytes_by_format"].items())
    yield (
        f"{facts['path']}: {facts['type']}, {facts['file_bytes'] / 1e6:.1f} MB of {facts['source_bytes'] / 1e6:.1f} MB, in "
        f"{facts['quantize_s']:.1f} s ({formats})"
    )
    nbytes = sum(facts["tensor_bytes_by_format"].values())
    if nbytes >= facts["source_bytes"]:
        yield (
            f"that is no smaller than the source: its weights take {facts['source_bytes'] / 1e6:.1f} MB, those of the result "
            f"{nbytes / 1e6:.1f} MB"
        )
    by_format: dict[str, list[str]] = {}
    for name, format in facts["fallbacks"].items():
        by_format.setdefault(format, []).append(name)
    for format, names in by_format.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"{format} where rows are no multiple of the type's superblock: {', '.join(names[:3])}{more}"
