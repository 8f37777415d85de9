"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hotloop.engine.llm import LLM
    from hotloop.sampling_params import SamplingParams
    from hotloop.structured_outputs import StructuredOutputsParams

DEFAULT_MAX_TOKENS = 512

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A catalog name, a path, hf:owner/repo[/file] or ollama:name[:tag].")
]
System = Annotated[str | None, typer.Option("--system", help="System message of the conversation.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's recommendation, else 1.")]
TopK = Annotated[int | None, typer.Option(help="Keep the K most probable tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Keep the smallest set of tokens with this mass.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens with at least this share of the top one's probability.")]
Seed = Annotated[int | None, typer.Option(help="64 bits; the same seed gives the same answer. Default: a fresh one.")]
MaxTokens = Annotated[int, typer.Option(help="At most so many new tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text. May be repeated.")]
JsonSchema = Annotated[Path | None, typer.Option(help="A file with a JSON schema: the answer is JSON that it describes.")]
Regex = Annotated[str | None, typer.Option(help="A regular expression that the whole answer matches.")]
Grammar = Annotated[Path | None, typer.Option(help="A file with a grammar of the answer, in Lark's syntax or in GBNF.")]
Others = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other sampling parameter, its value in JSON. May be repeated."),
]
Threads = Annotated[int | None, typer.Option(help="Default: the physical cores this process may use.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Context in tokens. Default: the model's.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Requests that run together.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Tokens of one step; longer prompts take several.")]
PrefillTokensBesideDecodes = Annotated[
    int | None,
    typer.Option(
        help="Prompt tokens of a step in which others get their next token: fewer make those wait less and prompts longer."
    ),
]
BlockSize = Annotated[int, typer.Option(help="Tokens of a KV block.")]
KvCacheMemoryBytes = Annotated[
    int | None,
    typer.Option(help="KV pool. Default: max-num-seqs times max-model-len, at most half of the free memory."),
]
EnablePrefixCaching = Annotated[bool, typer.Option(help="Prompts that begin alike share KV blocks.")]
Speculation = Annotated[
    str,
    typer.Option(help="none, or forced: tokens that an answer's form leaves no choice about are computed several at a time."),
]
RecommendedSampling = Annotated[
    bool, typer.Option(help="Where a request leaves a parameter open, sample as the model's makers recommend.")
]
KvDtype = Annotated[str, typer.Option(help="KV cache dtype: f32, f16, bf16 or int8.")]
Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        callback=lambda name: name and name.lower(),
        help="Quantize weights of floats on loading: q8_0, q4_k, q4_0, ... Default: as they are.",
    ),
]
Isa = Annotated[str | None, typer.Option(help="Kernel set; default: the best here, or $HOTLOOP_ISA.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Pull a missing model without asking.")]


def load(model: str, *, yes: bool, isa: str | None, tell: bool = False, **options: Any) -> LLM:
    """Resolve MODEL (offering to pull it) and load it. options: EngineConfig's fields. tell: print what they became."""
    from hotloop.cli.models import require_model

    path = require_model(model, yes=yes)
    from hotloop.cli.progress import TerminalReporter
    from hotloop.engine.llm import LLM

    with TerminalReporter() as reporter:
        llm = LLM(path, progress=reporter.progress, **options, **({} if isa is None else {"isa": isa}))
    if tell:
        print(f"{llm.path.name}: {llm.info}", file=sys.stderr)
    return llm


def sampling(
    *,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    max_tokens: int,
    stop: list[str] | None,
    others: list[str] | None,
    structured_outputs: StructuredOutputsParams | None = None,
    as_json: bool = False,
) -> SamplingParams:
    """others: NAME=VALUE each, of what no option is for. as_json: whether all of the answer is shown. Raises
    InvalidRequestError."""
    from hotloop.errors import InvalidRequestError
    from hotloop.sampling_params import SamplingParams

    options: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed, "max_tokens": max_tokens,
        "stop": stop,
    }  # fmt: skip
    settable = {f.name for f in fields(SamplingParams)} - options.keys() - {"n", "structured_outputs", "logits_processors"}
    values: dict[str, Any] = {}
    for text in others or ():
        name, _, value = text.partition("=")
        if name not in settable or name in values:
            raise InvalidRequestError(f"--set {text}: give each of these names once: {', '.join(sorted(settable))}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            raise InvalidRequestError(f"--set {text}: {value!r} is no JSON; texts have double quotes") from None
        if name in ("logprobs", "prompt_logprobs") and not as_json:
            raise InvalidRequestError(f"--set {text}: logprobs are not shown with the text alone; add --json, or leave it out")
    return SamplingParams(structured_outputs=structured_outputs, **options, **values)


def structure(json_schema: Path | None, regex: str | None, grammar: Path | None) -> StructuredOutputsParams | None:
    """The form of the answer, if one is asked for. Raises: InvalidRequestError."""
    from hotloop.structured_outputs import StructuredOutputsParams

    if json_schema is None and regex is None and grammar is None:
        return None
    return StructuredOutputsParams(json=_read(json_schema), regex=regex, grammar=_read(grammar))


def _read(path: Path | None) -> str | None:
    from hotloop.errors import InvalidRequestError

    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
