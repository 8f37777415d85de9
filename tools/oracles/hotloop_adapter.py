"""hotloop as the comparisons see it: logits of every position, and greedy continuations, from token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from gguf_model import F32

from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.ops.batch import Chunk, build_batch
from hotloop.request import Request, RequestId
from hotloop.sampling_params import SamplingParams
from hotloop.weights.gguf import GGUFFile

Activations = Literal["int8", "f32"]
KvDtype = Literal["f16", "f32"]

MAX_MODEL_LEN = 2_048
REQUEST = RequestId("oracle")


@lru_cache(maxsize=1)
def _runner(model: Path, activations: Activations, kv_dtype: KvDtype) -> ModelRunner:
    config = EngineConfig(max_model_len=MAX_MODEL_LEN, activations=activations, kv_dtype=kv_dtype)
    return ModelRunner(GGUFFile.open(model), config)


def hotloop_logits(model: Path, token_ids: Sequence[int], *, activations: Activations, kv_dtype: KvDtype) -> F32:
    """Logits of every position of one sequence, float32 [T, vocab_size], in chunks as a prefill has them."""
    runner = _runner(model, activations, kv_dtype)
    manager = KVCacheManager(runner.storage.layout, runner.storage.num_blocks)
    allocated = manager.allocate(REQUEST, len(token_ids))
    assert allocated, "the pool has room for MAX_MODEL_LEN tokens"
    out = np.empty((len(token_ids), runner.model.config.vocab_size), np.float32)
    for begin in range(0, len(token_ids), runner.max_num_seqs):
        chunk = token_ids[begin : begin + runner.max_num_seqs]
        batch = build_batch([Chunk(chunk, begin, manager.block_tables(REQUEST))], manager.layout.block_sizes)
        out[begin : begin + len(chunk)] = runner.forward(batch)
    return out


def hotloop_greedy(model: Path, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy continuation by the engine, int8 activations and f16 KV, past any end-of-text token."""
    runner = _runner(model, "int8", "f16")
    core = EngineCore(runner, runner.config)
    params = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=num_tokens)
    core.add([Request(REQUEST, list(prompt_ids), params, 0, num_tokens, frozenset())])
    out: list[int] = []
    while core.has_work:
        for delta in core.step():
            if delta.error:
                raise RuntimeError(delta.error)
            out.extend(delta.token_ids)
    return out
