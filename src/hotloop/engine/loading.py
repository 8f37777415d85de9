"""load_engine: from a model's name to a running engine in this process and what its client side needs."""

from __future__ import annotations

import difflib
import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hotloop import _native
from hotloop.config import EngineConfig
from hotloop.engine.build import build_core
from hotloop.engine.client import EngineClient, EngineInfo, InProcessClient
from hotloop.engine.core import EngineCore
from hotloop.engine.inputs import InputProcessor
from hotloop.engine.model_runner import ModelRunner
from hotloop.engine.recommended import recommended_sampling
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.telemetry.ceilings import read_ceiling
from hotloop.text.tokenizer import Tokenizer
from hotloop.text.tools.formats import format_for
from hotloop.weights.quantized_model import Progress, open_quantized
from hotloop.weights.resolve import resolve

_PREFILL_TOKENS_BESIDE_DECODES = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedEngine:
    """An engine that runs somewhere, and what the client's side needs. ceiling_bytes_per_s: see `read_ceiling`."""

    path: Path
    inputs: InputProcessor
    client: EngineClient
    ceiling_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine(ConnectedEngine):
    """An engine in this process. config: as it was asked for; ``client.info`` has the resolved one."""

    config: EngineConfig
    runner: ModelRunner
    core: EngineCore


def load_engine(model: str | Path, options: Mapping[str, Any], progress: Progress | None = None) -> LoadedEngine:
    """``model``: a catalog name, a path or hf:owner/repo[/file]. options: EngineConfig's fields. progress: of quantizing.

    Raises: ModelNotFoundError, ModelFileError, CapacityError, InvalidRequestError (a bad configuration).
    """
    path = resolve(str(model))
    config = engine_config(options)
    ceiling = read_ceiling(config.num_threads)  # first: measuring takes memory that the weights are to have
    with open_quantized(path, config.quantize, threads=config.num_threads, progress=progress) as model_file:
        tokenizer = Tokenizer.of_model(model_file)
        grammars = GrammarCompiler(lambda: tokenizer)
        recommended = recommended_sampling(model, model_file)
        built = build_core(model_file, config, grammars)
    # What is left of the file's metadata and of building the tokenizer: tens of megabytes.
    gc.collect()
    _native.release_free_memory()
    return LoadedEngine(
        path=path, config=config, inputs=input_processor(path, tokenizer, recommended, built.info, grammars),
        runner=built.runner, core=built.core, client=InProcessClient(built.core, built.info), ceiling_bytes_per_s=ceiling,
    )  # fmt: skip


def input_processor(
    path: Path,
    tokenizer: Tokenizer,
    recommended: Mapping[str, Any],
    info: EngineInfo,
    grammars: GrammarCompiler | None = None,
) -> InputProcessor:
    """The client's side of an engine. recommended: the model's sampling, used unless the configuration says not to.
    grammars: the engine's, if it is in this process.

    Raises HotloopError if tokenizer and model do not belong together.
    """
    if tokenizer.vocab_size > info.vocab_size:
        raise HotloopError(f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {info.vocab_size}")
    applied = recommended if info.config.recommended_sampling else {}
    _log.info("%s: sampling where a request says nothing: %s", path.name, dict(applied) or "temperature 1.0, all else off")
    return InputProcessor(
        tokenizer,
        info.max_model_len,
        max_request_tokens=info.max_request_tokens,
        recommended=applied,
        name=path.name,
        tool_format=info.config.tool_format,
        grammars=grammars,
    )


def for_readers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an engine where somebody waits for each token: short steps before throughput, unless they say else."""
    if options.get("prefill_tokens_beside_decodes") is not None:
        return dict(options)
    return {**options, "prefill_tokens_beside_decodes": _PREFILL_TOKENS_BESIDE_DECODES}


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """Raises InvalidRequestError as EngineConfig, and for an option that it does not have, with the nearest name it has."""
    known = [f.name for f in fields(EngineConfig)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidRequestError(
                f"unknown option {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
            )
    config = EngineConfig(**options)
    if config.tool_format is not None:
        format_for("", config.tool_format)
    return config
