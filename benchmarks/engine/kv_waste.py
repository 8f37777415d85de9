"""KV slots that are allocated but hold nothing, block by block against one contiguous reservation per request.

python benchmarks/engine/kv_waste.py [--requests 64] [--mean-tokens 400] [--block-size 16] [--max-model-len 4096]

No weights and no arrays: the engine's own scheduler and KV manager over the counts of requests whose lengths are drawn from
an exponential distribution. Sampled after every step while all requests run.
"""

import argparse
import json
import statistics

import numpy as np

from hotloop import SamplingParams
from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import Request, RequestId
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.scheduler import Scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--mean-tokens", type=int, default=400, help="of prompt and output together")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-model-len", type=int, default=4096)
    args = parser.parse_args()

    layout = KVLayout((KVGroup(tuple(range(16)), 8, 64),), args.block_size, "f16")
    num_blocks = args.requests * layout.blocks_for(args.max_model_len)
    kv_cache = KVCacheManager(layout, num_blocks)
    limits = SchedulerLimits(args.requests, 512, args.max_model_len)
    scheduler = Scheduler(kv_cache, limits)
    requests = draw_requests(args.requests, args.mean_tokens, args.max_model_len)
    scheduler.add(requests)

    waste, contiguous, running = [], [], []
    token_bytes = layout.token_bytes(0)
    while scheduler.has_work:
        output = scheduler.schedule(now_s=0.0)
        drawn = [s.request for s in output.scheduled if s.draws]
        finished = {r.request_id for r in drawn if len(r.output_token_ids) + 1 >= r.max_tokens}
        usage = kv_cache.usage()
        stored_bytes = usage.stored_bytes + token_bytes * output.num_tokens  # with those of this step
        waste.append((usage.allocated_bytes - stored_bytes) / stored_bytes)
        reserved_bytes = scheduler.num_running * args.max_model_len * token_bytes
        contiguous.append((reserved_bytes - stored_bytes) / stored_bytes)
        running.append(scheduler.num_running)
        scheduler.update(output, {r.request_id: [1] for r in drawn}, finished)

    mean_waste = float(np.average(waste, weights=running))
    mean_contiguous = float(np.average(contiguous, weights=running))
    print(
        f"{args.requests} requests of {statistics.mean(r.max_tokens + len(r.prompt_token_ids) for r in requests):.0f} "
        f"tokens on average, {len(waste)} steps, at most {max(running)} running\n"
        f"blocks of {args.block_size}: {mean_waste:.1%} of the used slots are allocated and unused\n"
        f"contiguous, {args.max_model_len} reserved for each: {mean_contiguous:.0%}"
    )
    print(
        json.dumps(
            {
                "bench": "kv_waste",
                "requests": args.requests,
                "block_size_tokens": args.block_size,
                "max_model_len_tokens": args.max_model_len,
                "waste_share_of_used": mean_waste,
                "contiguous_waste_share_of_used": mean_contiguous,
            }
        )
    )


def draw_requests(num_requests: int, mean_tokens: int, max_model_len: int) -> list[Request]:
    """Half of a request's tokens are its prompt; the same requests for the same arguments."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.exponential(mean_tokens, num_requests).astype(int), 16, max_model_len)
    return [
        Request(
            RequestId(str(i)), rng.integers(0, 1000, length // 2).tolist(), SamplingParams(), 0, int(length - length // 2),
            frozenset(),
        )
        for i, length in enumerate(lengths)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
