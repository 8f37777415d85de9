"""Continuous against static batching, and a crowd against a queue: the same requests, interleaved in one call.

python benchmarks/engine/continuous_batching.py MODEL [--requests 64] [--slots 16] [--prompt 32] [--rounds 3]

Outputs have 8 to 256 tokens. Static: groups of ``slots`` requests in order of arrival, padded, so every request
of a group occupies its slot until the longest ends, and all of the group return then. Continuous: all requests at
once; one that ends makes room for the next. Static can be no better than mean/max of continuous: the occupancy bound.
Then the first ``slots`` requests together and one after another.
"""

import argparse
import json
import statistics
import time

import numpy as np

from hotloop import LLM, SamplingParams
from hotloop.telemetry.ceilings import measure_read_bandwidth

SHORT_TOKENS = 32  # outputs up to this are "short"

Prompts = list[dict[str, list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--chunk", type=int, help="prefill_tokens_beside_decodes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--crowd-tokens", type=int, default=32, help="outputs of the crowd")
    args = parser.parse_args()

    llm = LLM(
        args.model, max_num_seqs=args.slots, max_model_len=args.prompt + 512, enable_prefix_caching=False,
        prefill_tokens_beside_decodes=args.chunk,
    )  # fmt: skip
    ceiling = measure_read_bandwidth(llm.num_threads)
    print(f"ceiling: {ceiling.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s; {llm.num_threads} threads, kernels {llm.isa}")
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(300, 10000, args.prompt).tolist()} for _ in range(args.requests)]
    lengths = rng.integers(8, 257, args.requests).tolist()
    groups = [range(i, min(i + args.slots, args.requests)) for i in range(0, args.requests, args.slots)]
    padded = sum(max(lengths[i] for i in group) * len(group) for group in groups)
    bound = padded / sum(lengths)
    print(
        f"{args.requests} requests, {sum(lengths)} output tokens, {args.slots} slots; occupancy bound max/mean {bound:.2f}x"
    )
    llm.generate(prompts[: args.slots], _params(8))  # warm-up

    continuous: list[float] = []
    static: list[float] = []
    waits: dict[str, list[float]] = {"continuous": [], "static": []}  # completion times of short requests
    for _ in range(args.rounds):
        begin_s = time.perf_counter()
        outputs = llm.generate(prompts, [_params(n) for n in lengths])
        continuous.append(time.perf_counter() - begin_s)
        ends = [o.timings["e2e_s"] for o in outputs]
        waits["continuous"] += [end for end, n in zip(ends, lengths, strict=True) if n <= SHORT_TOKENS]

        begin_s = time.perf_counter()
        for group in groups:
            longest = max(lengths[i] for i in group)
            llm.generate([prompts[i] for i in group], _params(longest))
            end_s = time.perf_counter() - begin_s
            waits["static"] += [end_s for i in group if lengths[i] <= SHORT_TOKENS]
        static.append(time.perf_counter() - begin_s)

    speedups = [s / c for s, c in zip(static, continuous, strict=True)]
    for name, times in (("continuous", continuous), ("static", static)):
        p50, p99 = np.percentile(waits[name], [50, 99])
        print(
            f"{name:<11} {sum(lengths) / statistics.median(times):7.1f} tokens/s aggregate; "
            f"short requests done after {p50:.2f} s (p50), {p99:.2f} s (p99)"
        )
    speedup = statistics.median(speedups)
    print(f"continuous / static: {speedup:.2f}x = {speedup / bound:.0%} of the occupancy bound")

    together, queued = time_crowd(llm, prompts[: args.slots], args.crowd_tokens, args.rounds)
    ratio = statistics.median(t / q for t, q in zip(together, queued, strict=True))
    print(
        f"crowd of {args.slots}, {args.crowd_tokens} tokens each: {statistics.median(together):.2f} s together, "
        f"{statistics.median(queued):.2f} s one after another: {ratio:.2f}x"
    )
    print(
        json.dumps(
            {
                "bench": "continuous_batching",
                "model": args.model,
                "threads": llm.num_threads,
                "isa": llm.isa,
                "read_bandwidth_ceiling_bytes_per_s": ceiling.read_bandwidth_bytes_per_s,
                "requests": args.requests,
                "slots": args.slots,
                "occupancy_bound": bound,
                "continuous_over_static": speedups,
                "continuous_tokens_per_s": sum(lengths) / statistics.median(continuous),
                "static_tokens_per_s": sum(lengths) / statistics.median(static),
                "crowd_over_queue_time": ratio,
                "crowd_s": together,
                "queue_s": queued,
            }
        )
    )


def time_crowd(llm: LLM, prompts: Prompts, num_tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the prompts together and one after another, per round."""
    together, queued = [], []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        llm.generate(prompts, _params(num_tokens))
        together.append(time.perf_counter() - begin_s)
        begin_s = time.perf_counter()
        for prompt in prompts:
            llm.generate(prompt, _params(num_tokens))
        queued.append(time.perf_counter() - begin_s)
    return together, queued


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


if __name__ == "__main__":
    main()
