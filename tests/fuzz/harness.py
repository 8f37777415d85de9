"""A mutation fuzzer for what reads hostile input: every case ends with a result or a hotloop error, soon, in little memory.

Case i of a run is a function of (target, seed, i), so that its numbers are enough to have it again. Cases run in a process
of their own, whose memory is limited; the parent ends it when a case takes too long, and keeps the case as a file.
"""

import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from hotloop.errors import HotloopError

_MEMORY_BYTES = 512 << 20  # beyond what the process has at its start
_GRACE_S = 10.0  # for the start of a process


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed: how a case is made, and what reads it."""

    name: str
    make: Callable[[Random], bytes]
    read: Callable[[bytes], None]  # may raise HotloopError
    case_limit_s: float  # ten times what a case may take


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that went wrong, and how."""

    target: str
    seed: int
    case: int
    what: str
    data: bytes

    def __str__(self) -> str:
        shown = repr(self.data) if len(self.data) < 1000 else f"{self.data[:1000]!r}... ({len(self.data)} bytes)"
        return (
            f"{self.target}: case {self.case} of seed {self.seed}: {self.what}\n{shown}\n"
            f"again: python tests/fuzz/run.py {self.target} --seed {self.seed} --case {self.case}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    num_cases: int
    num_accepted: int  # that were read without an error
    finding: Finding | None


def case_data(target: Target, seed: int, case: int) -> bytes:
    return target.make(Random(f"{target.name}:{seed}:{case}"))


def fuzz(target: Target, seed: int, *, seconds: float = 1e9, first: int = 0, num_cases: int = 10**9) -> Outcome:
    """Cases from the first on, for so long or so many, until one goes wrong."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_run_cases, args=(theirs, target, seed, first, num_cases, time.monotonic() + seconds), daemon=True
    )
    process.start()
    theirs.close()
    case, accepted, limit_s = first, 0, target.case_limit_s + _GRACE_S
    try:
        while True:
            if not ours.poll(limit_s):
                what = f"takes longer than {target.case_limit_s:g} s"
                break
            try:
                message = ours.recv()
            except EOFError:
                process.join()
                what = f"ended the process (exit status {process.exitcode})"
                break
            match message:
                case ("done", count, accepted):
                    return Outcome(count, accepted, None)
                case ("failed", case, what):
                    break
                case ("begins", case, accepted):
                    limit_s = target.case_limit_s
    finally:
        process.kill()
        process.join()
        ours.close()
    return Outcome(case - first, accepted, Finding(target.name, seed, case, what, case_data(target, seed, case)))


def _run_cases(pipe: Connection, target: Target, seed: int, first: int, num_cases: int, deadline_s: float) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES,) * 2)
    accepted = 0
    for case in range(first, first + num_cases):
        if time.monotonic() > deadline_s:
            num_cases = case - first
            break
        pipe.send(("begins", case, accepted))
        began_s = time.monotonic()
        try:
            target.read(case_data(target, seed, case))
            accepted += 1
        except HotloopError as error:
            if len(str(error)) > 100_000:
                pipe.send(("failed", case, f"its message has {len(str(error))} characters"))
                return
        except BaseException:
            pipe.send(("failed", case, traceback.format_exc(limit=-6)))
            return
        if (took_s := time.monotonic() - began_s) > target.case_limit_s:
            pipe.send(("failed", case, f"took {took_s:.1f} s"))
            return
    pipe.send(("done", num_cases, accepted))


def keep(finding: Finding, folder: Path) -> Path:
    """Write the case to a file; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.target}-{finding.seed}-{finding.case}"
    path.write_bytes(finding.data)
    return path
