"""Forward batches made by hand: any requests at any positions over a pool that is full of finite numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotloop.config import EngineConfig
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import InvalidRequestError
from hotloop.kv_cache.layout import KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.models.config import kv_groups
from hotloop.models.registry import load_model_spec
from hotloop.ops.batch import Chunk, ForwardBatch, build_batch
from hotloop.weights.model_file import ModelFile

MAX_TOKENS = 512  # of one step


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [begin, end) of one request, computed in one step. wants_logits: of its last token."""

    request: int
    begin: int
    end: int
    wants_logits: bool = True


def load_runner(model_file: ModelFile, num_requests: int, num_tokens: int, threads: int | None, isa: str) -> ModelRunner:
    """A runner whose KV pool holds exactly ``num_requests`` requests of ``num_tokens`` tokens, filled with noise.

    Raises: InvalidRequestError if the model's context is shorter; what ModelRunner raises.
    """
    config = load_model_spec(model_file).config
    if num_tokens > config.context_length:
        raise InvalidRequestError(
            f"--context and --tokens ask for {num_tokens} positions; the model has {config.context_length}"
        )
    engine = EngineConfig(threads=threads, isa=isa, max_num_seqs=num_requests, max_num_batched_tokens=MAX_TOKENS)
    layout = KVLayout(kv_groups(config), engine.block_size, engine.kv_dtype)
    pool_bytes = num_requests * layout.blocks_for(num_tokens) * layout.block_bytes
    runner = ModelRunner(model_file, replace(engine, kv_cache_memory_bytes=pool_bytes))
    # Pages that were never written all are the one zero page, which never leaves the cache.
    noise = np.random.default_rng(0).normal(size=1 << 19).astype(np.float32 if engine.kv_dtype == "f32" else np.float16)
    pool = runner.storage.pool.view(noise.dtype)
    for begin in range(0, pool.size, noise.size):
        pool[begin : begin + noise.size] = noise[: pool.size - begin]
    return runner


class BatchMaker:
    """Requests 0, 1, ... with blocks for ``num_tokens`` tokens each."""

    def __init__(self, runner: ModelRunner, num_requests: int, num_tokens: int) -> None:
        self._layout = runner.storage.layout
        manager = KVCacheManager(self._layout, runner.storage.num_blocks)
        for request in range(num_requests):
            assert manager.allocate(str(request), num_tokens), "load_runner sized the pool"
        self._tables = [manager.block_tables(str(request)) for request in range(num_requests)]
        self._rng = np.random.default_rng(1)
        self._vocab_size = runner.model.config.vocab_size

    def batch(self, spans: Sequence[Span]) -> ForwardBatch:
        """The step that computes ``spans`` with random token ids."""
        ends = np.cumsum([s.end - s.begin for s in spans])
        token_ids = np.split(self._rng.integers(self._vocab_size, size=ends[-1], dtype=np.int32), ends[:-1])
        chunks = [
            Chunk(ids.tolist(), s.begin, self._tables[s.request], "last" if s.wants_logits else "none")
            for s, ids in zip(spans, token_ids, strict=True)
        ]
        return build_batch(chunks, self._layout.block_sizes)
