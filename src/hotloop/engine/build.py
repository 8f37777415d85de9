"""build_core: from an open model file to an engine core. All that an engine process needs, and no text but for grammars."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from hotloop.config import EngineConfig
from hotloop.engine.client import EngineInfo
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.model_file import ModelFile
from hotloop.weights.open_model import open_model

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltCore:
    runner: ModelRunner
    core: EngineCore
    info: EngineInfo


def build_core(model_file: ModelFile, config: EngineConfig, grammars: GrammarCompiler | None = None) -> BuiltCore:
    """Load the weights and start the thread team. grammars: None for a compiler of its own. Raises as `ModelRunner`."""
    runner = ModelRunner(model_file, config)
    path = model_file.path
    core = EngineCore(
        runner, runner.resolved_config, grammars=grammars or GrammarCompiler(lambda: _tokenizer(path))
    )
    info = EngineInfo(
        config=runner.resolved_config, num_blocks=runner.num_blocks, block_bytes=runner.layout.block_bytes,
        max_request_tokens=core.scheduler.max_request_tokens, vocab_size=runner.vocab_size,
        weight_bytes_per_step=runner.weight_bytes_per_step,
    )  # fmt: skip
    _log.info("%s: %s", model_file.path.name, info)
    if info.max_request_tokens < info.max_model_len:
        _log.warning(
            "the KV pool holds %d tokens of a request and max_model_len is %d: those that need more will be refused; lower "
            "max_model_len or raise kv_cache_memory_bytes",
            info.max_request_tokens, info.max_model_len,
        )  # fmt: skip
    return BuiltCore(runner, core, info)


def _tokenizer(path: Path) -> Tokenizer:
    with open_model(path) as model_file:
        return Tokenizer.of_model(model_file)
