"""Process start to first token, and peak resident memory: a new `hotloop run` process each time, file in the page cache.

python benchmarks/start/cold_start.py MODEL [--runs 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from hotloop.weights.resolve import resolve


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()

    # In a process of its own: a child's peak memory starts from its parent's.
    probe = [sys.executable, "-m", "hotloop.cli.main", "machine", "--json"]
    ceiling_bytes_per_s = json.loads(subprocess.check_output(probe))["read_bandwidth_bytes_per_s"]
    print(f"ceiling: {ceiling_bytes_per_s / 1e9:.1f} GB/s")
    file_bytes = resolve(args.model).stat().st_size
    first_token_s_and_peak_bytes(args.model)  # warm-up: the file enters the page cache
    runs = [first_token_s_and_peak_bytes(args.model) for _ in range(args.runs)]
    first, peak = [r[0] for r in runs], [r[1] for r in runs]
    for seconds, peak_bytes in runs:
        print(f"first token after {seconds:.2f} s, peak {peak_bytes / 1e6:.0f} MB")
    print(
        json.dumps(
            {
                "bench": "cold_start",
                "model": args.model,
                "first_token_s_median": statistics.median(first),
                "first_token_s_min": min(first),
                "first_token_s_max": max(first),
                "file_bytes": file_bytes,
                "peak_resident_bytes": max(peak),
                "read_bandwidth_ceiling_bytes_per_s": ceiling_bytes_per_s,
            }
        )
    )


if __name__ == "__main__":
    main()
