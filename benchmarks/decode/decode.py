"""Decode at batch 1: tokens/s, bytes read, and the share of the read ceiling sampled next to each run.

python benchmarks/decode/decode.py MODEL [--tokens 64] [--runs 5] [--threads N]
"""

import argparse
import json
import statistics

from hotloop import LLM, SamplingParams
from hotloop.telemetry.ceilings import measure_read_bandwidth

PROMPT = "The history of the bicycle begins in the early nineteenth century, when"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    llm = LLM(args.model, threads=args.threads)
    ceiling = measure_read_bandwidth(llm.num_threads)
    print(
        f"ceiling: {ceiling.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s with {llm.num_threads} threads "
        f"({ceiling.min_bytes_per_s / 1e9:.1f} to {ceiling.max_bytes_per_s / 1e9:.1f}); kernels: {llm.isa}"
    )
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    llm.generate(PROMPT, params)  # warm-up

    tokens_per_s, shares = [], []
    timings = {}
    for run in range(args.runs):
        timings = llm.generate(PROMPT, params)[0].timings
        ceiling = measure_read_bandwidth(llm.num_threads)
        bytes_per_s = timings["decode_tokens_per_s"] * (timings["weight_bytes_per_step"] + timings["kv_bytes_per_step"])
        tokens_per_s.append(timings["decode_tokens_per_s"])
        shares.append(bytes_per_s / ceiling.read_bandwidth_bytes_per_s)
        print(
            f"run {run + 1}: {tokens_per_s[-1]:.1f} tokens/s, {bytes_per_s / 1e9:.1f} GB/s, "
            f"{shares[-1]:.0%} of {ceiling.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s"
        )
    print(
        json.dumps(
            {
                "bench": "decode",
                "model": args.model,
                "batch": 1,
                "threads": llm.num_threads,
                "isa": llm.isa,
                "decode_tokens_per_s": statistics.median(tokens_per_s),
                "decode_tokens_per_s_min": min(tokens_per_s),
                "decode_tokens_per_s_max": max(tokens_per_s),
                "weight_bytes_per_step": timings["weight_bytes_per_step"],
                "kv_bytes_per_step": timings["kv_bytes_per_step"],
                "mbu": statistics.median(shares),
            }
        )
    )


if __name__ == "__main__":
    main()
