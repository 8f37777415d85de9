"""`hotloop batch IN OUT`: answers a file of OpenAI batch requests."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options as opt

if TYPE_CHECKING:
    from rich.progress import Progress

    from hotloop.server.batch_run import BatchCounts


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Requests, one JSON object a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Answers, in the order in which they are done.")],
    model: Annotated[
        str | None, typer.Option(help="Answers all lines; needed where none of them names a model. Default: the one they name.")
    ] = None,
    max_num_seqs: opt.MaxNumSeqs = 32,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = 512,
    max_model_len: opt.MaxModelLen = None,
    block_size: opt.BlockSize = 16,
    kv_cache_memory_bytes: opt.KvCacheMemoryBytes = None,
    kv_dtype: opt.KvDtype = "f16",
    enable_prefix_caching: opt.EnablePrefixCaching = True,
    speculation: opt.Speculation = "forced",
    recommended_sampling: opt.RecommendedSampling = True,
    threads: opt.Threads = None,
    quantize: opt.Quantize = None,
    isa: opt.Isa = None,
    yes: opt.Yes = False,
) -> None:
    """Answer a file of OpenAI batch requests (/v1/chat/completions and /v1/completions), many at a time.

    Started again with the same files it does the lines that are missing. A line that cannot be answered gets its error.
    """
    from hotloop.errors import InvalidRequestError
    from hotloop.server.batch_file import BatchOutput, count_lines, read_batch
    from hotloop.server.batch_run import run_batch

    if not source.is_file():
        raise InvalidRequestError(f"{source} is not a file; give a file of batch requests")
    if target.exists() and target.samefile(source):
        raise InvalidRequestError(f"{target} is the input; give another file for the answers")
    total = count_lines(source)
    name = model or next((line.body.model for line in read_batch(source) if line.body and line.body.model), None)
    if name is None:
        raise InvalidRequestError(f"no line of {source} names a model; use --model")
    with BatchOutput(target) as output:
        if all(line.key in output.done for line in read_batch(source)):
            print(
                f"all {total} lines were done before; errors count: a line taken out of {target} is done again",
                file=sys.stderr,
            )
            return
        llm = opt.load(
            name, yes=yes, isa=isa, quantize=quantize, tell=True, threads=threads, max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, block_size=block_size,
            kv_cache_memory_bytes=kv_cache_memory_bytes, kv_dtype=kv_dtype,
            enable_prefix_caching=enable_prefix_caching, speculation=speculation, recommended_sampling=recommended_sampling,
        )  # fmt: skip
        start_s = time.perf_counter()
        with _Bar(total) as bar:
            counts = run_batch(llm, source, output, model, bar.show)
    elapsed_s = time.perf_counter() - start_s
    why = f" ({target} says why)" if counts.failed else ""
    print(
        f"{counts.answered} answered, {counts.failed} failed{why}, {counts.skipped} done before; "
        f"{counts.prompt_tokens} prompt and {counts.completion_tokens} completion tokens in {elapsed_s:.1f} s "
        f"({counts.completion_tokens / elapsed_s:.1f} completion tokens/s, aggregate)",
        file=sys.stderr,
    )


class _Bar:
    """Lines done, on stderr; without a terminal nothing."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._progress: Progress | None = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
            self._progress.add_task("", total=self._total)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, counts: BatchCounts) -> None:
        if self._progress is not None:
            failed = f"{counts.failed} failed" if counts.failed else ""
            self._progress.update(self._progress.task_ids[0], completed=counts.finished, description=failed)
