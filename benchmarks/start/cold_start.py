"""Process start to first token, loading time and resident memory: new processes each time, the file in the page cache.

MODEL may be a folder, say one of benchmarks/peers/write_random_folder.py.

python benchmarks/start/cold_start.py MODEL [--runs 5]

Each run starts `hotloop run` (first token, peak memory) and a process that loads the model with hotloop.LLM, answers with a
few tokens and looks at its memory (loading time, steady memory). The last line is one JSON object (fields: schema.toml,
cold_start).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.weights.open_model import open_model
from hotloop.weights.resolve import resolve

# Resident memory is read from /proc: Linux only.
_STEADY = """
import json, sys, time
from hotloop import LLM, SamplingParams
started_s = time.perf_counter()
llm = LLM(sys.argv[1])
load_s = time.perf_counter() - started_s
llm.generate("Hi", SamplingParams(temperature=0, max_tokens=4))
fields = dict(line.split(":") for line in open("/proc/self/status"))
print(json.dumps([load_s, *(1024 * int(fields[key].split()[0]) for key in ("VmRSS", "VmHWM"))]))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds and bytes of one `hotloop run` and of one process that uses LLM."""

    first_token_s: float
    load_s: float
    peak_resident_bytes: int
    steady_resident_bytes: int


def run_once(model: str) -> Run:
    first_token_s, peak = first_token_s_and_peak_bytes(model)
    load_s, steady, peak_of_llm = json.loads(subprocess.check_output([sys.executable, "-c", _STEADY, model]))
    return Run(first_token_s, load_s, max(peak, peak_of_llm), steady)


def first_token_s_and_peak_bytes(model: str) -> tuple[float, int]:
    """Seconds from exec to the first byte of the answer, and the peak resident bytes of the process."""
    command = [
        sys.executable,
        "-m",
        "hotloop.cli.main",
        "run",
        model,
        "Hi",
        "--raw",
        "--max-tokens",
        "2",
        "--temperature",
        "0",
    ]
    started_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    first_s = time.perf_counter() - started_s
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{' '.join(command)} failed"
    return first_s, usage.ru_maxrss * 1024


def summary(model: str, file_bytes: int, ceiling_bytes_per_s: float, runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON object: medians of times, the worst of memory."""
    first_s = [run.first_token_s for run in runs]
    load_s = [run.load_s for run in runs]
    peak = max(run.peak_resident_bytes for run in runs)
    steady = max(run.steady_resident_bytes for run in runs)
    return {
        "bench": "cold_start",
        "model": model,
        "first_token_s_median": statistics.median(first_s),
        "first_token_s_min": min(first_s),
        "first_token_s_max": max(first_s),
        "load_s_median": statistics.median(load_s),
        "load_s_max": max(load_s),
        "file_bytes": file_bytes,
        "peak_resident_bytes": peak,
        "peak_resident_per_file_byte": peak / file_bytes,
        "steady_resident_bytes": steady,
        "steady_resident_per_file_byte": steady / file_bytes,
        "read_bandwidth_ceiling_bytes_per_s": ceiling_bytes_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()

    # In a process of its own: a child's peak memory starts from its parent's.
    probe = [sys.executable, "-m", "hotloop.cli.main", "machine", "--json"]
    ceiling_bytes_per_s = json.loads(subprocess.check_output(probe))["read_bandwidth_bytes_per_s"]
    print(f"ceiling: {ceiling_bytes_per_s / 1e9:.1f} GB/s")
    with open_model(resolve(args.model)) as model_file:
        file_bytes = model_file.nbytes
    run_once(args.model)  # warm-up: the file enters the page cache
    runs = []
    for _ in range(args.runs):
        run = run_once(args.model)
        runs.append(run)
        print(
            f"first token after {run.first_token_s:.2f} s, loaded in {run.load_s:.2f} s; "
            f"peak {run.peak_resident_bytes / 1e6:.0f} MB, then {run.steady_resident_bytes / 1e6:.0f} MB"
        )
    print(json.dumps(summary(args.model, file_bytes, ceiling_bytes_per_s, runs)))


if __name__ == "__main__":
    main()
