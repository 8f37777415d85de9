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
from hotloop.engine.client import EngineInfo, InProcessClient
from hotloop.engine.core import EngineCore
from hotloop.engine.inputs import InputProcessor
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.telemetry.ceilings import read_ceiling
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.catalog import entry_for
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.resolve import resolve

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """config: as it was asked for; ``client.info`` has the resolved one. ceiling_bytes_per_s: see `read_ceiling`."""

    path: Path
    config: EngineConfig
    inputs: InputProcessor
    runner: ModelRunner
    core: EngineCore
    client: InProcessClient
    ceiling_bytes_per_s: float


def load_engine(model: str | Path, options: Mapping[str, Any]) -> LoadedEngine:
    """``model``: a catalog name, a path or hf:owner/repo[/file]. options: EngineConfig's fields.

    Raises: ModelNotFoundError, ModelFileError, CapacityError, InvalidRequestError (a bad configuration).
    """
    path = resolve(str(model))
    config = engine_config(options)
    entry = entry_for(model) or entry_for(path)
    recommended = {} if entry is None else {
        f.name: getattr(entry.sampling, f.name) for f in fields(entry.sampling)
        if getattr(entry.sampling, f.name) is not None
    }  # fmt: skip
    ceiling = read_ceiling(config.num_threads)  # first: measuring takes memory that the weights are to have
    tokenizer, runner = _load(path, config)
    # What is left of the file's metadata and of building the tokenizer: tens of megabytes.
    gc.collect()
    _native.release_free_memory()
    if tokenizer.vocab_size > runner.vocab_size:
        raise HotloopError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {runner.vocab_size}"
        )
    core = EngineCore(runner, runner.resolved_config)
    info = EngineInfo(
        config=runner.resolved_config, num_blocks=runner.num_blocks, block_bytes=runner.layout.block_bytes,
        vocab_size=runner.vocab_size, weight_bytes_per_step=runner.weight_bytes_per_step,
    )  # fmt: skip
    _log.info("%s: %s", path.name, info)
    needed = core.kv_cache.blocks_to_hold(runner.max_model_len - 1)
    if needed > runner.num_blocks:
        _log.warning(
            "the KV pool has %d blocks and a request of max_model_len %d takes %d: those that need more than there are "
            "will be refused; lower max_model_len or raise kv_cache_memory_bytes",
            runner.num_blocks, runner.max_model_len, needed,
        )  # fmt: skip
    inputs = InputProcessor(tokenizer, runner.max_model_len, recommended=recommended, name=path.name)
    return LoadedEngine(path, config, inputs, runner, core, InProcessClient(core, info), ceiling)


def _load(path: Path, config: EngineConfig) -> tuple[Tokenizer, ModelRunner]:
    with GGUFFile.open(path) as gguf:
        return Tokenizer.from_metadata(gguf.metadata), ModelRunner(gguf, config)


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """Raises InvalidRequestError for an option that EngineConfig does not have, with the nearest name that it has."""
    known = [f.name for f in fields(EngineConfig)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidRequestError(
                f"unknown option {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
            )
    return EngineConfig(**options)
