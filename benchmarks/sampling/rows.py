"""Time to draw: microseconds per row of logits for each set of parameters, and per step of many greedy rows.

python benchmarks/sampling/rows.py [--vocab 49152,151936] [--rows 32] [--threads 1] [--isa avx2] [--json]

Logits are normal with a standard deviation of 3, other ones every call, so that the caches hold what they hold after a
forward pass (the logits) and no branch predictor learns a row. The ceiling beside them is the time to read a row once.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import SamplingParams, _native
from hotloop.sampling.draw import Row, Sampler
from hotloop.sampling.state import SamplerState

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1.0},
    "top_k 40, top_p, min_p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "top_k 1000, top_p": {"temperature": 1.0, "top_k": 1000, "top_p": 0.95},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "qwen's defaults": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
    "top_n_sigma": {"temperature": 1.0, "top_n_sigma": 1.0},
    "typical_p": {"temperature": 1.0, "typical_p": 0.9},
    "typical_p after min_p": {"temperature": 1.0, "min_p": 0.05, "typical_p": 0.9},
    "min_p, xtc": {"temperature": 1.0, "min_p": 0.05, "xtc_probability": 0.5},
    "mirostat": {"temperature": 1.0, "mirostat": 2},
    "min_p, dry": {"temperature": 1.0, "min_p": 0.05, "dry_multiplier": 0.8},
    "greedy, logprobs 5": {"temperature": 0, "logprobs": 5},
    "processed logprobs 5": {"temperature": 1.0, "min_p": 0.05, "logprobs": 5, "logprobs_mode": "processed"},
    "mask of half the ids": {"temperature": 1.0, "top_p": 0.9, "masked": 0.5},
    "mask of 1 in 1000": {"temperature": 1.0, "top_p": 0.9, "masked": 0.999},
}
PROMPT_TOKENS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", default="49152,151936")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default=_native.usable_isas()[0])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    team = _native.ThreadTeam(args.threads) if args.threads > 1 else None
    sampler = Sampler(args.isa, team)
    text = sys.stderr if args.json else sys.stdout
    for vocab_size in (int(v) for v in args.vocab.split(",")):
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 3, (args.rows, vocab_size)).astype(np.float32)
        read_us = timed(lambda i, rows=logits: rows[i % args.rows].max(), args.repeat)[0]
        print(f"{vocab_size} logits, {args.isa}, {args.threads} threads; numpy's max takes {read_us:.0f} us", file=text)
        for name, params in CASES.items():
            rows = [a_row(vocab_size, i, params) for i in range(args.rows)]
            one_us, spread_us = timed(one_row(sampler, logits, rows), args.repeat)
            step_us, _ = timed(all_rows(sampler, logits, rows), max(5, args.repeat // 5))
            print(
                f"  {name:24} {one_us:7.0f} us a row alone (+- {spread_us:.0f}), "
                f"{step_us / args.rows:7.0f} us a row of a step of {args.rows}", file=text,
            )  # fmt: skip
            if args.json:
                print(json.dumps({
                    "case": name, "vocab_size": vocab_size, "isa": args.isa, "threads": args.threads, "rows": args.rows,
                    "row_alone_us": one_us, "step_us": step_us,
                }))  # fmt: skip


def a_row(vocab_size: int, index: int, params: dict[str, Any]) -> Row:
    prompt = np.random.default_rng(index).integers(0, vocab_size, PROMPT_TOKENS).tolist()
    params = dict(params)
    mask = None
    if "masked" in params:
        bits = np.random.default_rng(index).random(vocab_size + 31 & ~31) >= params.pop("masked")
        mask = np.packbits(bits, bitorder="little").view(np.uint32)
    state = SamplerState(SamplingParams(**params), seed=index, prompt_token_ids=prompt, vocab_size=vocab_size)
    return Row(state, PROMPT_TOKENS, mask=mask)


def one_row(sampler: Sampler, logits: NDArray[np.float32], rows: list[Row]) -> Callable[[int], object]:
    return lambda i: sampler.draw(logits, [rows[i % len(rows)]], logits_rows=[i % len(rows)])


def all_rows(sampler: Sampler, logits: NDArray[np.float32], rows: list[Row]) -> Callable[[int], object]:
    return lambda i: sampler.draw(logits, rows)


def timed(call: Callable[[int], object], repeat: int) -> tuple[float, float]:
    """Microseconds: the median, and half the distance of the 10th and the 90th percentile."""
    times = []
    for i in range(repeat + 3):
        begin_s = time.perf_counter()
        call(i)
        times.append((time.perf_counter() - begin_s) * 1e6)
    deciles = statistics.quantiles(times[3:], n=10)
    return statistics.median(times[3:]), (deciles[8] - deciles[0]) / 2


if __name__ == "__main__":
    main()
