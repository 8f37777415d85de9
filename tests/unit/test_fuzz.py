"""The fuzzer finds what it is for, and says how to have it again."""

import os
import re
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fuzz.harness import Target, case_data, fuzz, keep
from fuzz.targets import TARGETS
from hotloop.errors import ModelFileError


def make(random: Random) -> bytes:
    return bytes([random.randrange(10)])


def target_with(fault: object, limit_s: float = 20.0) -> Target:
    def read(data: bytes) -> None:
        if data == b"\7":
            fault()  # type: ignore[operator]
        if data == b"\3":
            raise ModelFileError("as it should be")

    return Target("planted", make, read, limit_s)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (lambda: {}["x"], "KeyError: 'x'"),
        (lambda: np.ones(1 << 27), "MemoryError|Unable to allocate"),
        (lambda: os._exit(3), r"ended the process \(exit status 3\)"),
        (lambda: os.kill(os.getpid(), 9), r"ended the process \(exit status -9\)"),
        (lambda: (_ for _ in ()).throw(ModelFileError("x" * 200_000)), "its message has 200000 characters"),
        (lambda: (_ for _ in ()).throw(RecursionError), "RecursionError"),
    ],
)
def test_planted_faults_are_found(tmp_path: Path, fault: object, what: str) -> None:
    finding = fuzz(target_with(fault), seed=1, num_cases=200).finding
    assert finding is not None
    assert finding.data == b"\7"
    assert re.search(what, finding.what)
    assert f"run.py planted --seed 1 --case {finding.case}" in str(finding)
    assert keep(finding, tmp_path).read_bytes() == b"\7"
    again = fuzz(target_with(fault), seed=1, first=finding.case, num_cases=1)
    assert again.finding is not None


def test_a_hang_is_found() -> None:
    finding = fuzz(target_with(lambda: time.sleep(60), limit_s=0.5), seed=1, num_cases=200).finding
    assert finding is not None
    assert (finding.data, finding.what) == (b"\7", "takes longer than 0.5 s")


def test_errors_of_hotloop_are_results() -> None:
    outcome = fuzz(target_with(lambda: None), seed=1, num_cases=100)
    assert outcome.finding is None
    assert outcome.num_cases == 100
    assert 50 < outcome.num_accepted < 100


@pytest.mark.parametrize("name", TARGETS)
def test_cases_follow_from_their_numbers_and_reach_deep(name: str) -> None:
    target = TARGETS[name]
    cases = [case_data(target, 5, case) for case in range(60)]
    assert cases == [case_data(target, 5, case) for case in range(60)]
    assert len(set(cases)) > 40
    outcome = fuzz(target, seed=5, num_cases=60)
    assert outcome.finding is None, outcome.finding
    assert outcome.num_accepted > 0
