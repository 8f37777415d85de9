"""`hotloop serve` against llama-server under the same load from the same client, both sides interleaved.

python benchmarks/serving/compare.py MODEL.gguf --work DIR [--isa native|avx2] [--concurrency 16] [--requests 32]
    [--prompt-tokens 128] [--output-tokens 128] [--rounds 3] [--threads N] [--hotloop-args=...] [--llama-args=...]

llama-server is built under --work on first use, as the peers of benchmarks/peers/compare.py are. Both servers run all the
time and have as many slots as there are clients; every round loads the one, then the other, with prompts that neither has
seen. Ratios are hotloop's figure / llama-server's of the same round, the median over the rounds. The last line is one JSON
object (fields: schema.toml, serving_compare). Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers import Command, ServerError, hotloop, llama_server, running

from hotloop.bench.serving.prompts import Lengths
from hotloop.bench.serving.serve import ServeOptions, bench_serve_blocking
from hotloop.bench.timing import print_conditions
from hotloop.machine import default_num_threads

sys.path.append(str(Path(__file__).parents[1] / "peers"))
from llama_cpp import SERVER, LlamaCpp, build
from sides import SideError

OURS, THEIRS = "hotloop", SERVER
_WARMUP_TOKENS = 8
_FIGURES: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "tokens_per_s": lambda result: float(result["tokens_per_s"]),
    "ttft_p50_s": lambda result: float(result["ttft_s"]["p50"]),
    "tpot_p50_s": lambda result: float(result["tpot_s"]["p50"]),
    "itl_p50_s": lambda result: float(result["itl_s"]["p50"]),
    "itl_p99_s": lambda result: float(result["itl_s"]["p99"]),
    "e2e_p50_s": lambda result: float(result["e2e_s"]["p50"]),
}


def summary(rounds: Sequence[Mapping[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """For each figure its medians and the median ratio."""
    return {
        name: {
            OURS: statistics.median(figure(results[OURS]) for results in rounds),
            THEIRS: statistics.median(figure(results[THEIRS]) for results in rounds),
            "ratio": statistics.median(figure(results[OURS]) / figure(results[THEIRS]) for results in rounds),
        }
        for name, figure in _FIGURES.items()
    }


def measure_rounds(
    urls: Mapping[str, str], num_rounds: int, load: Callable[[str, bool], dict[str, Any]]
) -> list[dict[str, dict[str, Any]]]:
    """Every side warmed up, then loaded in turn. load: of a URL, measured or to warm up. Raises ServerError if a request
    fails."""
    for url in urls.values():
        load(url, False)
    rounds = []
    for number in range(num_rounds):
        results = {}
        for side, url in urls.items():
            results[side] = load(url, True)
            if results[side]["num_failed"]:
                raise ServerError(f"{side}: {results[side]['failures']}")
            cells = "  ".join(f"{name} {figure(results[side]):8.3f}" for name, figure in _FIGURES.items())
            print(f"round {number + 1}  {side:<14}{cells}", flush=True)
        rounds.append(results)
    return rounds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the peer; never inside the repository")
    parser.add_argument("--isa", choices=("native", "avx2"), default="native", help="of both sides")
    parser.add_argument("--sdist", type=Path, help="llama.cpp's source archive, instead of PyPI's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the peer's build")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32, help="per round and side")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--hotloop-args", default="", help="more options of hotloop serve")
    parser.add_argument("--llama-args", default="", help="more options of llama-server")
    args = parser.parse_args()
    if not args.model.exists():
        parser.error(f"{args.model} does not exist")
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def commands(args: argparse.Namespace, binaries: Path) -> dict[str, Command]:
    slot_tokens = -(-(args.prompt_tokens + args.output_tokens + 32) // 256) * 256
    size = ["--threads", str(args.threads), "--max-num-seqs", str(args.concurrency), *args.hotloop_args.split()]
    return {
        OURS: hotloop(args.model, size, "avx2" if args.isa == "avx2" else ""),
        THEIRS: llama_server(
            binaries / SERVER, args.model, args.threads, args.concurrency, slot_tokens,
            args.llama_args.split(),
        ),
    }  # fmt: skip


def main() -> None:
    args = parse()
    binaries = build(args.work.resolve(), args.isa, args.sdist, args.jobs, (SERVER,))
    peer = LlamaCpp(binaries, args.threads)
    try:
        peer.check()
        description = peer.describe()
    except SideError as error:
        sys.exit(f"compare.py: {error}")
    print(f"{THEIRS}: {description}")
    ceiling, load_average = print_conditions(args.threads)

    def load(url: str, is_measured: bool) -> dict[str, Any]:
        num_requests = args.requests if is_measured else args.concurrency
        output_tokens = args.output_tokens if is_measured else _WARMUP_TOKENS
        options = ServeOptions(
            url, concurrency=args.concurrency, num_requests=num_requests, num_warmup=0,
            prompt_tokens=Lengths(args.prompt_tokens, args.prompt_tokens), output_tokens=Lengths(output_tokens, output_tokens),
        )  # fmt: skip
        return bench_serve_blocking(options, lambda _: None)

    try:
        with ExitStack() as stack:
            urls = {side: stack.enter_context(running(command)).url for side, command in commands(args, binaries).items()}
            rounds = measure_rounds(urls, args.rounds, load)
    except ServerError as error:
        sys.exit(f"compare.py: {error}")
    figures = summary(rounds)
    for name, values in figures.items():
        print(f"{name:<14}{OURS} {values[OURS]:9.3f}  {THEIRS} {values[THEIRS]:9.3f}  ratio {values['ratio']:6.3f}")
    result = {
        "bench": "serving_compare",
        "model": args.model.name,
        "isa": args.isa,
        "threads": args.threads,
        "concurrency": args.concurrency,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "num_requests": args.requests,
        "read_bandwidth_ceiling_bytes_per_s": ceiling,
        "load_average": load_average,
        "peer": description,
        "figures": figures,
        "rounds": rounds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
