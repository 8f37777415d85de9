"""The engine inside somebody else's process: its floating-point settings, its numpy settings, its forks, its limits."""

import ctypes
import os
import platform
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.engines import exit_code
from hotloop import LLM, SamplingParams
from hotloop.errors import CapacityError

SAMPLED = SamplingParams(temperature=1.3, top_k=60, top_p=0.95, min_p=0.001, seed=11, max_tokens=24, logprobs=4)


@contextmanager
def mxcsr(bits: int) -> Iterator[None]:
    """This thread's MXCSR with `bits` added: 0x8040 flushes denormals to zero, 0x4000 rounds up."""
    libm = ctypes.CDLL("libm.so.6")
    saved = (ctypes.c_uint32 * 8)()  # glibc's fenv_t; the last word is MXCSR
    libm.fegetenv(saved)
    changed = (ctypes.c_uint32 * 8)(*saved)
    changed[7] |= bits
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(saved)


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="MXCSR through glibc")
@pytest.mark.parametrize("bits", [0x8040, 0x4000, 0x2000, 0x6000])
def test_the_hosts_rounding_changes_nothing_and_is_restored(model: Path, bits: int) -> None:
    expected = LLM(model, threads=2).generate(["hello there"], SAMPLED)[0].outputs[0]
    with mxcsr(bits):
        before = (ctypes.c_uint32 * 8)()
        ctypes.CDLL("libm.so.6").fegetenv(before)
        output = LLM(model, threads=2).generate(["hello there"], SAMPLED)[0].outputs[0]
        after = (ctypes.c_uint32 * 8)()
        ctypes.CDLL("libm.so.6").fegetenv(after)
    assert (output.token_ids, output.logprobs) == (expected.token_ids, expected.logprobs)
    assert after[7] & 0xFFC0 == before[7] & 0xFFC0


def test_numpy_errors_and_warnings_of_the_host_do_not_fire(model: Path) -> None:
    expected = LLM(model).generate(["hello"], SAMPLED)[0].outputs[0].token_ids
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        llm = LLM(model)
        assert llm.generate(["hello"], SAMPLED)[0].outputs[0].token_ids == expected
        for temperature in (1e-30, 1e30):
            llm.generate(["hello"], SamplingParams(temperature=temperature, max_tokens=4, logprobs=20))
        assert np.geterr()["under"] == "raise"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_an_engine_of_its_own(model: Path) -> None:
    llm = LLM(model, threads=3)
    expected = llm.generate(["hello", "the fox"], SAMPLED)
    stream = llm.stream("hello", SAMPLED)
    chunks = [next(stream)]
    # Right after a step the team's threads are about to fall asleep: at some of these moments one holds a lock, or is on the
    # list of the sleepers, and the child, which has no such threads, must not wait for it.
    for delay_s in (0, 20e-6, 40e-6, 80e-6, 160e-6, 320e-6, 0.1):
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < delay_s:
            pass
        child = os.fork()
        if child == 0:
            try:
                stream.close()  # else this process's next request would wait for it
                same = llm.generate(["the fox"], SAMPLED)[0].outputs[0].token_ids == expected[1].outputs[0].token_ids
                del stream, llm  # must not wait for threads that this process does not have
                os._exit(0 if same else 1)
            finally:
                os._exit(2)
        assert exit_code(child) == 0
        chunks.append(next(stream))
    chunks += stream  # the child's request has not touched this one's keys and values
    assert [i for c in chunks for i in c.token_ids] == expected[0].outputs[0].token_ids


def test_several_engines_and_threads_at_once(model: Path) -> None:
    engines = [LLM(model, threads=n) for n in (1, 2, 3, 16)]
    expected = engines[0].generate(["hello"], SAMPLED)[0].outputs[0].token_ids
    answers: list[list[int]] = []

    def ask(llm: LLM) -> None:
        for _ in range(5):
            answers.append(llm.generate(["hello"], SAMPLED)[0].outputs[0].token_ids)

    threads = [threading.Thread(target=ask, args=(llm,), daemon=True) for llm in engines * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [expected] * 5 * len(threads)


def test_too_many_threads_for_the_process_are_an_error(model: Path) -> None:
    code = f"""
import resource
from hotloop import LLM
from hotloop.errors import CapacityError
LLM({str(model)!r}, threads=1)
pages = int(open('/proc/self/statm').read().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    LLM({str(model)!r}, threads=1024)
except CapacityError as error:
    print(error)
"""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "1024 threads" in done.stdout
    assert "lower threads" in done.stdout


def test_memory_that_is_not_there_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapacityError, match=r"kv_cache_memory_bytes is 4611686018427387904.*lower it"):
        LLM(model, kv_cache_memory_bytes=2**62)
    monkeypatch.setattr("hotloop.engine.model_runner.available_memory_bytes", lambda: 1000)
    with pytest.raises(CapacityError, match=r"weights take \d+ bytes and 1000 are free"):
        LLM(model)


def test_an_answer_survives_a_probe_that_cannot_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(threads: int) -> None:
        raise CapacityError("no memory to measure")

    monkeypatch.setattr("hotloop.telemetry.ceilings.cached_read_bandwidth", refuse)
    output = LLM(model).generate(["hello"], SAMPLED)[0]
    assert output.timings is not None
    assert (output.timings["read_bandwidth_ceiling_bytes_per_s"], output.timings["mbu"]) == (0, 0)
