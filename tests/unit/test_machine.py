"""Thread and memory limits: affinity, hyperthreads, quotas (known fault B129)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import machine


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    assert machine.physical_cores(frozenset({0, 1, 2, 3}), tmp_path) == 2
    assert machine.physical_cores(frozenset({0, 2}), tmp_path) == 1
    assert machine.physical_cores(frozenset({0, 7}), tmp_path) == 2  # no topology: a core of its own


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 4.0),
        ({"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/x\n", 3.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/\n", None),
        ({}, "", None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], own: str, limit: float | None) -> None:
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    (tmp_path / "root").mkdir(exist_ok=True)
    write(tmp_path / "own", own)
    assert machine.cgroup_cpu_limit(tmp_path / "root", tmp_path / "own") == limit


@pytest.mark.parametrize(("cores", "limit", "threads"), [(8, None, 8), (8, 2.7, 2), (2, 16.0, 2), (4, 0.5, 1)])
def test_threads_are_the_tighter_of_cores_and_quota(
    monkeypatch: pytest.MonkeyPatch, cores: int, limit: float | None, threads: int
) -> None:
    monkeypatch.setattr(machine, "physical_cores", lambda _: cores)
    monkeypatch.setattr(machine, "cgroup_cpu_limit", lambda: limit)
    assert machine.default_num_threads() == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_the_affinity_of_this_process_counts() -> None:  # known fault B129
    """A process pinned to one CPU has one thread, in the configuration and in the team."""
    code = """if True:
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from hotloop import EngineConfig, _native
        print(EngineConfig().num_threads, _native.ThreadTeam(EngineConfig().num_threads).size)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_source(), check=True)
    assert done.stdout.split() == ["1", "1"]


def with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(machine.__file__).parents[1])}


def test_available_memory_respects_the_cgroup(tmp_path: Path) -> None:
    meminfo, root, own = tmp_path / "meminfo", tmp_path / "root", tmp_path / "own"
    write(meminfo, "MemTotal: 100 kB\nMemAvailable:       8000 kB\n")

    def available() -> int:
        return machine.available_memory_bytes(meminfo, root, own)

    assert available() == 8000 * 1024
    write(root / "memory.max", "1000000")
    write(root / "memory.current", "400000")
    assert available() == 600000
    write(root / "memory.stat", "anon 1\ninactive_file 300000\n")  # page cache, a model file's say, is not in the way
    assert available() == 900000
    write(own, "0::/a/b\n")
    write(root / "a/memory.max", "500000")
    write(root / "a/memory.current", "600000")
    assert available() == 0
    write(root / "a/memory.max", "max")
    write(root / "memory.max", "max")
    assert available() == 8000 * 1024


def test_available_memory_respects_a_v1_cgroup(tmp_path: Path) -> None:
    write(tmp_path / "own", "4:cpu,memory:/x\n")
    write(tmp_path / "root/memory/x/memory.limit_in_bytes", "700000")
    write(tmp_path / "root/memory/x/memory.usage_in_bytes", "500000")
    write(tmp_path / "root/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n")
    assert machine.available_memory_bytes(tmp_path / "meminfo", tmp_path / "root", tmp_path / "own") == 300000
