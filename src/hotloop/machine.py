"""What this process may use of the machine: threads and memory."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def available_cpus() -> frozenset[int]:
    """Ids of the CPUs this process may run on (its affinity)."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(cpus: frozenset[int], topology: Path = _CPUS) -> int:
    """Distinct cores among ``cpus``: of hyperthreads that share a core one counts."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((topology / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def cgroup_cpu_limit(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The tightest CPU quota, in CPUs, of this process's control groups (v2, then v1); None without one."""
    limits = []
    try:
        paths = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        paths = []
    for _, controllers, path in paths:
        group = root / path.lstrip("/") if not controllers else root / "cpu" / path.lstrip("/")
        base = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (group, *group.parents):
            limits.append(_quota(folder))
            if folder == base:
                break
    limits += [_quota(root), _quota(root / "cpu")]  # inside a container its own group is the root
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _quota(folder: Path) -> float | None:
    """Quota / period of one control group folder."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except ValueError:  # "max"
        return None


def default_num_threads() -> int:
    """min(physical cores of the affinity, whole CPUs of the quota), at least 1."""
    cores = physical_cores(available_cpus())
    limit = cgroup_cpu_limit()
    return max(1, cores if limit is None else min(cores, int(limit)))


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo"), root: Path = _CGROUP) -> int:
    """Bytes this process can still take: what the kernel calls available, within the control group's limit."""
    available = _meminfo_available(meminfo)
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = int((root / limit_file).read_text())
            used = int((root / used_file).read_text())
        except (OSError, ValueError):
            continue
        available = min(available, max(0, limit - used))
    return available


def _meminfo_available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
