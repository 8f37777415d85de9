"""Fuzz what reads hostile input (see harness.py).

    run.py [TARGET...] [--seconds S] [--seed N] [--case I]

Without --seed two runs a target: a fixed seed, and a fresh one, which is printed. With --case that one case only. Several
targets run side by side, each in a process of its own, as many at a time as there are cores.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from fuzz.harness import fuzz, keep  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402
from hotloop.machine import available_cpus  # noqa: E402

FIXED_SEED = 20_261_130


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each target, all its runs together")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--case", type=int)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for what is found")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {unknown.pop()!r}; there are {', '.join(TARGETS)}")
    names = options.targets or list(TARGETS)
    if len(names) == 1:
        return run(names[0], options)
    given = [f"--{name}={value}" for name, value in vars(options).items() if name != "targets" and value is not None]

    def run_beside(name: str) -> int:
        return subprocess.run([sys.executable, __file__, name, *given], check=False).returncode

    with ThreadPoolExecutor(len(available_cpus())) as pool:
        return int(any(list(pool.map(run_beside, names))))  # all of them end first


def run(name: str, options: argparse.Namespace) -> int:
    seeds = [FIXED_SEED, time.time_ns() % 10**9] if options.seed is None else [options.seed]
    found = 0
    for seed in seeds:
        if options.case is None:
            outcome = fuzz(TARGETS[name], seed, seconds=options.seconds / len(seeds))
        else:
            outcome = fuzz(TARGETS[name], seed, first=options.case, num_cases=1)
        print(f"{name}: seed {seed}: {outcome.num_cases} cases, {outcome.num_accepted} accepted", flush=True)
        if outcome.finding is not None:
            found = 1
            print(f"{outcome.finding}\nkept as {keep(outcome.finding, options.keep)}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
