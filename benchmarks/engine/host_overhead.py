"""What a step costs outside the forward pass: scheduling, the batch, sampling, emission.

python benchmarks/engine/host_overhead.py [--batch 1,32] [--vocab 49152] [--steps 300] [--waiting 10,10000]

The engine's own EngineCore over a fake runner whose forward returns a fixed array of logits at once. No weights.
"""

import argparse
import json
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from hotloop import SamplingParams
from hotloop.config import EngineConfig
from hotloop.engine.core import EngineCore
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.request import Request, RequestId

PROMPT_TOKENS = 64
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, ignore_eos=True)


class FakeRunner:
    """A model that takes no time. Room for max_num_seqs requests."""

    layout = KVLayout((KVGroup(tuple(range(16)), 8, 64),), 16, "f16")
    team = None
    max_tokens = 512
    max_model_len = 4096
    weight_bytes_per_step = 0
    max_draft_tokens = 32

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.isa = choose_kernel_set("")
        self.max_num_seqs = max_num_seqs
        self.vocab_size = vocab_size
        self.num_blocks = max_num_seqs * self.layout.blocks_for(self.max_model_len)
        self._logits = np.random.default_rng(0).normal(size=(max_num_seqs, vocab_size)).astype(np.float32)

    def copy_blocks(self, pairs: object) -> None:
        pass

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        return self._logits[: len(batch.logits_rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=_numbers, default=[1, 32])
    parser.add_argument("--vocab", type=int, default=49152, help="rows of logits have so many; 151936 for qwen2.5")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--waiting", type=_numbers, default=[0, 10, 10000], help="requests in the queue behind the batch")
    args = parser.parse_args()

    rows = []
    for kind, params in (("greedy", GREEDY), ("temperature 0.8, top_k 50, top_p 0.95", SAMPLED)):
        for batch in args.batch:
            for waiting in args.waiting:
                steps_s = time_steps(batch, waiting, params, args.vocab, args.steps)
                median_s, p99_s = statistics.median(steps_s), sorted(steps_s)[len(steps_s) * 99 // 100]
                print(f"batch {batch:<3} waiting {waiting:<6} {median_s * 1e6:8.1f} us (p99 {p99_s * 1e6:.1f})  {kind}")
                rows.append(
                    {"sampling": kind, "batch": batch, "waiting": waiting, "step_s_median": median_s, "step_s_p99": p99_s}
                )
    print(json.dumps({"bench": "host_overhead", "vocab_size": args.vocab, "rows": rows}))


def time_steps(batch: int, waiting: int, params: SamplingParams, vocab_size: int, num_steps: int) -> list[float]:
    """Seconds of decode steps of ``batch`` requests with ``waiting`` others behind them."""
    core = EngineCore(FakeRunner(batch, vocab_size), EngineConfig())
    rng = np.random.default_rng(1)
    core.add(
        [
            Request(
                RequestId(str(i)), rng.integers(0, vocab_size, PROMPT_TOKENS).tolist(), params, i,
                core.runner.max_model_len - PROMPT_TOKENS, frozenset(),
            )
            for i in range(batch + waiting)
        ]
    )  # fmt: skip
    while core.steps.last is None or core.steps.last.num_decode_tokens < batch:
        core.step()
    for _ in range(20):
        core.step()
    steps_s = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        deltas = core.step()
        steps_s.append(time.perf_counter() - begin_s)
        assert len(deltas) == batch, "a step that is not a decode step of the whole batch"
    return steps_s


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
