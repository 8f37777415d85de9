"""How a long prompt slows the others down, by the size of its chunks: inter-token latency during a prefill, table and plot.

python benchmarks/engine/prefill_interference.py MODEL [--streams 8] [--prompt 4096] [--chunks 16,32,64,128,256,512]

Streams decode; then one long prompt arrives. ITL: each gap between emitted tokens of the others, before it and while it is
prefilled, in chunks of so many tokens (EngineConfig.prefill_tokens_beside_decodes).
"""

import argparse
import asyncio
import itertools
import json
import time

import numpy as np

from hotloop import AsyncLLM, SamplingParams
from hotloop.telemetry.ceilings import measure_read_bandwidth

BAR_WIDTH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--chunks", type=lambda text: [int(n) for n in text.split(",")], default=[16, 32, 64, 128, 256, 512])
    args = parser.parse_args()

    rows = []
    for chunk in args.chunks:
        llm = AsyncLLM(
            args.model, max_num_seqs=args.streams + 1, max_num_batched_tokens=max(args.chunks) + args.streams,
            max_model_len=args.prompt + 1024, prefill_tokens_beside_decodes=chunk,
        )  # fmt: skip
        if not rows:
            ceiling = measure_read_bandwidth(llm.config.num_threads).read_bandwidth_bytes_per_s
            print(f"ceiling: {ceiling / 1e9:.1f} GB/s; {llm.config.num_threads} threads, kernels {llm.config.isa}")
            print(" chunk   prefill    ITL before       ITL during the prefill (p50, p99, max)")
        with_llm = asyncio.run(measure(llm, args.streams, args.prompt))
        llm.close()
        before, during, prefill_s = with_llm
        p50, p99 = np.percentile(during, [50, 99])
        rows.append(
            {
                "chunk_tokens": chunk,
                "prefill_s": prefill_s,
                "itl_before_s_p50": float(np.median(before)),
                "itl_during_s_p50": float(p50),
                "itl_during_s_p99": float(p99),
                "itl_during_s_max": float(max(during)),
            }
        )
        print(
            f"{chunk:>6} {prefill_s:8.2f} s {np.median(before) * 1e3:9.1f} ms  "
            f"{p50 * 1e3:9.1f} ms {p99 * 1e3:9.1f} ms {max(during) * 1e3:9.1f} ms"
        )
    longest = max(float(row["itl_during_s_p50"]) for row in rows)
    print("\nITL p50 during the prefill")
    for row in rows:
        itl_s = float(row["itl_during_s_p50"])
        print(f"{row['chunk_tokens']:>6} {'#' * max(1, round(BAR_WIDTH * itl_s / longest))} {itl_s * 1e3:.0f} ms")
    print(
        json.dumps(
            {
                "bench": "prefill_interference",
                "model": args.model,
                "streams": args.streams,
                "prompt_tokens": args.prompt,
                "read_bandwidth_ceiling_bytes_per_s": ceiling,
                "rows": rows,
            }
        )
    )


async def measure(llm: AsyncLLM, num_streams: int, prompt_tokens: int) -> tuple[list[float], list[float], float]:
    """Gaps between tokens of the streams before the long prompt and during its prefill, and the prefill's seconds."""
    rng = np.random.default_rng(0)

    def prompt(length: int) -> dict[str, list[int]]:
        return {"prompt_token_ids": rng.integers(300, 10000, length).tolist()}

    endless = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
    moments: list[list[float]] = [[] for _ in range(num_streams)]

    async def stream(mine: list[float]) -> None:
        async for chunk in llm.generate(prompt(32), endless):
            if chunk.token_ids:
                mine.append(time.perf_counter())

    tasks = [asyncio.create_task(stream(mine)) for mine in moments]
    while min(len(mine) for mine in moments) < 40:
        await asyncio.sleep(0.01)
    begin_s = time.perf_counter()
    await llm.answer(prompt(prompt_tokens), SamplingParams(temperature=0, max_tokens=1))
    end_s = time.perf_counter()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    before, during = [], []
    for mine in moments:
        for last, now in itertools.pairwise(mine[5:]):
            if now < begin_s:
                before.append(now - last)
            elif last > begin_s and now < end_s:
                during.append(now - last)
    return before, during, end_s - begin_s


if __name__ == "__main__":
    main()
