"""hotloop against llama.cpp and openvino-genai on the same files, both sides interleaved.

python benchmarks/peers/compare.py MODEL.gguf ... --work DIR [--isa native|avx2] [--peers llama.cpp,openvino]
    [--llama-bin DIR [--llama-name NAME] [--llama-args="-rtr"]] [--openvino-model DIR]
    [--batch 1,4,8,16,32] [--context 32] [--tokens 32] [--prefill 512] [--rounds 3] [--threads N]

Peers are installed under --work on first use: llama.cpp is built from its PyPI source archive (natively, or without AVX-512
for --isa avx2), openvino-genai gets an environment. --llama-bin takes the llama-batched-bench of that folder instead. For
every model and batch size each round measures hotloop and then every peer, so that all see the same minutes of a drifting
machine; the ratio is the median of the rounds' ratios. The last line is one JSON object (fields: schema.toml, compare).
Run it on a quiet machine.
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import openvino_genai_side
from sides import Hotloop, Load, Side, SideError

from hotloop.bench.timing import print_conditions
from hotloop.machine import default_num_threads


@dataclass(slots=True)
class Row:
    """One model and measure: tokens per second of each side, round by round."""

    model: Path
    measure: str  # decode or prefill
    batch: int
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, peer: str) -> float:
        return statistics.median(
            ours / theirs for ours, theirs in zip(self.rounds["hotloop"], self.rounds[peer], strict=True)
        )

    def figures(self, side: str) -> dict[str, float]:
        rates = self.rounds[side]
        return {
            "tokens_per_s": statistics.median(rates),
            "min_tokens_per_s": min(rates),
            "max_tokens_per_s": max(rates),
        }

    def as_json(self) -> dict[str, Any]:
        peers = {name: {**self.figures(name), "ratio": self.ratio(name)} for name in self.rounds if name != "hotloop"}
        return {
            "model": self.model.name,
            "measure": self.measure,
            "batch": self.batch,
            "hotloop": self.figures("hotloop"),
            "peers": peers,
        }

    def as_text(self, peers: list[str]) -> str:
        cells = [f"{self.model.stem[:28]:<29}{self.measure:<8}{self.batch:>5}  {_rate(self.figures('hotloop'))}"]
        for peer in peers:
            if peer in self.rounds:
                cells.append(f"{_rate(self.figures(peer))}  {self.ratio(peer):5.2f}x")
            else:
                cells.append(f"{'-':>24}{'':>8}")
        return "  ".join(cells)


def _rate(figures: dict[str, float]) -> str:
    return f"{figures['tokens_per_s']:8.1f} ({figures['min_tokens_per_s']:5.1f}..{figures['max_tokens_per_s']:6.1f})"


def measure_row(row: Row, sides: list[Side], load: Load, rounds: int) -> None:
    """Fill the row; a side that fails on this model is left out, hotloop is not allowed to."""
    failed: set[str] = set()
    for _ in range(rounds):
        for side in sides:
            if side.name in failed:
                continue
            try:
                decode = row.measure == "decode"
                rate = side.decode(row.model, row.batch, load) if decode else side.prefill(row.model, load)
            except SideError as error:
                if side.name == "hotloop":
                    raise
                print(f"{side.name} is left out: {error}", file=sys.stderr)
                failed.add(side.name)
                row.rounds.pop(side.name, None)
                continue
            row.rounds.setdefault(side.name, []).append(rate)


def make_sides(args: argparse.Namespace) -> list[Side]:
    """hotloop first. Raises SideError for a llama.cpp that was not built for speed."""
    sides: list[Side] = [Hotloop(args.threads, "avx2" if args.isa == "avx2" else "")]
    if "llama.cpp" in args.peers:
        binaries = args.llama_bin or llama_cpp.build(args.work, args.isa, args.sdist, args.jobs)
        peer = llama_cpp.LlamaCpp(binaries, args.threads, tuple(args.llama_args.split()), args.llama_name)
        peer.check()
        sides.append(peer)
    if "openvino" in args.peers:
        python = openvino_genai_side.install(args.work)
        sides.append(openvino_genai_side.OpenVino(python, args.threads, args.isa, args.openvino_model))
    return sides


def parse() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.split(",") if n]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--work", type=Path, required=True, help="folder for the peers; never inside the repository")
    parser.add_argument("--isa", choices=("native", "avx2"), default="native")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=["llama.cpp"], help="of llama.cpp,openvino"
    )
    parser.add_argument("--sdist", type=Path, help="llama.cpp's source archive, instead of PyPI's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the peer's build")
    parser.add_argument("--llama-bin", type=Path, help="folder with a llama-batched-bench")
    parser.add_argument("--llama-name", default="llama.cpp")
    parser.add_argument("--llama-args", default="", help="more options of llama-batched-bench")
    parser.add_argument("--openvino-model", type=Path, help="folder of one model in OpenVINO's format")
    parser.add_argument("--batch", type=numbers, default=[1, 4, 8, 16, 32])
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prompt; 0: no prefill")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=default_num_threads())
    args = parser.parse_args()
    for path in [*args.models, *([args.llama_bin] if args.llama_bin else [])]:
        if not path.exists():
            parser.error(f"{path} does not exist")
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    return args


def main() -> None:
    args = parse()
    try:
        sides = make_sides(args)
        descriptions = {side.name: side.describe() for side in sides}
    except SideError as error:
        sys.exit(f"compare.py: {error}")
    for name, text in descriptions.items():
        print(f"{name}: {text}")
    ceiling, load_average = print_conditions(args.threads)

    load = Load(args.context, args.tokens, args.prefill)
    peers = [side.name for side in sides[1:]]
    header = f"{'tokens/s, median (min..max)':<29}{'':<8}{'batch':>5}  {'hotloop':<24}"
    print("  ".join([header, *(f"{peer:<24}{'ratio':>8}" for peer in peers)]))
    rows = []
    for model in args.models:
        measures = [("decode", batch) for batch in args.batch] + ([("prefill", 1)] if args.prefill else [])
        for measure, batch in measures:
            row = Row(model, measure, batch)
            try:
                measure_row(row, sides, load, args.rounds)
            except SideError as error:
                sys.exit(f"compare.py: {error}")
            print(row.as_text(peers), flush=True)
            rows.append(row)
    result = {
        "bench": "compare",
        "isa": args.isa,
        "threads": args.threads,
        "context_tokens": args.context,
        "decode_tokens": args.tokens,
        "prompt_tokens": args.prefill,
        "rounds": args.rounds,
        "read_bandwidth_ceiling_bytes_per_s": ceiling,
        "load_average": load_average,
        "sides": descriptions,
        "rows": [row.as_json() for row in rows],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
