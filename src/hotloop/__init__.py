"""hotloop: an LLM decode engine. The public API; imported on first use, so that `import hotloop` costs nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # not typing's: importing that takes longer than anything else before `cli.entry` can catch Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from hotloop.config import EngineConfig
    from hotloop.engine.async_llm import AsyncLLM
    from hotloop.engine.generation import GenerationError, StreamChunk
    from hotloop.engine.llm import LLM
    from hotloop.engine.resume import Resume
    from hotloop.errors import HotloopError
    from hotloop.request import CompletionOutput, RequestOutput
    from hotloop.sampling_params import SamplingParams
    from hotloop.structured_outputs import StructuredOutputsParams

_HOMES = {
    "LLM": "hotloop.engine.llm",
    "AsyncLLM": "hotloop.engine.async_llm",
    "Resume": "hotloop.engine.resume",
    "StreamChunk": "hotloop.engine.generation",
    "EngineConfig": "hotloop.config",
    "SamplingParams": "hotloop.sampling_params",
    "StructuredOutputsParams": "hotloop.structured_outputs",
    "RequestOutput": "hotloop.request",
    "CompletionOutput": "hotloop.request",
    "GenerationError": "hotloop.engine.generation",
    "HotloopError": "hotloop.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "GenerationError",
    "HotloopError",
    "RequestOutput",
    "Resume",
    "SamplingParams",
    "StreamChunk",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotloop' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
