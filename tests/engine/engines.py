"""Small helpers of the engine tests: greedy parameters, a runner over a tiny model, all logits of a sequence."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import LLM, SamplingParams
from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.engine.model_runner import ModelRunner
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.ops.batch import Chunk, ForwardBatch, build_batch
from hotloop.weights.gguf import GGUFFile

MAX_ROWS = 64  # that get logits in one step
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def make_runner(path: Path, **config: Any) -> ModelRunner:
    with GGUFFile.open(path) as gguf:
        return ModelRunner(gguf, EngineConfig(**{"max_num_seqs": MAX_ROWS, **config}))


def all_logits(runner: ModelRunner, token_ids: Sequence[int], chunks: Sequence[int] = ()) -> NDArray[np.float32]:
    """Logits float32 [T, vocab_size] of every position, computed in chunks of these sizes, then of what fits."""
    layout = runner.storage.layout
    manager = KVCacheManager(layout, runner.storage.num_blocks)
    rows = []
    begin = 0
    sizes = iter(chunks)
    while begin < len(token_ids):
        size = min(next(sizes, MAX_ROWS), MAX_ROWS, runner.max_tokens)
        end = min(begin + size, len(token_ids))
        assert manager.allocate("x", end)
        rows.append(runner.forward(batch_of(manager, token_ids, begin, end)).copy())
        begin = end
    return np.concatenate(rows)


def batch_of(manager: KVCacheManager, token_ids: Sequence[int], begin: int, end: int) -> ForwardBatch:
    """Positions [begin, end) of the request "x", every one with logits."""
    chunk = Chunk(token_ids[begin:end], begin, manager.block_tables("x"))
    return build_batch([chunk], manager.layout.block_sizes)


def assert_same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    assert a.shape == b.shape
    assert (a.view(np.uint32) == b.view(np.uint32)).all(), f"max difference {np.abs(a - b).max()}"


def assert_idle(llm: LLM) -> None:
    """No request, no block in use and no unread delta is left."""
    assert_core_idle(llm._core)
    assert not llm._router.num_open


def assert_core_idle(core: EngineCore) -> None:
    assert not core.has_work
    assert not core.scheduler.has_work
    assert core.kv_cache.num_free_blocks == core.kv_cache.num_blocks
    core.scheduler.check_invariants()


def exit_code(child: int) -> int:
    """Of a forked process, which is killed if it takes 30 s."""
    killer = threading.Timer(30, os.kill, (child, 9))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    return os.waitstatus_to_exitcode(status)
