"""What this process may use of the machine: threads and memory."""

from __future__ import annotations

import contextlib
import os
import resource
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
    limits = [_quota(folder) for folder in _cgroup_folders("cpu", root, own)]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _cgroup_folders(controller: str, root: Path, own: Path) -> list[Path]:
    """Folders of the control groups this process is in, outer ones included, that may limit what ``controller`` hands out."""
    folders = [root, root / controller]  # inside a container its own group is the root
    try:
        paths = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        paths = []
    for _, controllers, path in paths:
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(base)]
    return folders


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


def available_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes this process can still take: what the kernel calls available, within its control groups' and own limits."""
    free = [_cgroup_free(folder) for folder in _cgroup_folders("memory", root, own)]
    return min([_meminfo_available(meminfo), *(f for f in [_address_space_free(), *free] if f is not None)])


def _address_space_free(statm: Path = Path("/proc/self/statm")) -> int | None:
    """What `ulimit -v` leaves to this process; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
    return max(0, limit - used)


def _cgroup_free(folder: Path) -> int | None:
    """Limit - use of one control group folder, file pages that the kernel can drop not counted as used."""
    for limit_file, used_file, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        with contextlib.suppress(OSError, KeyError, ValueError):
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used -= int(stat[reclaimable])
        return max(0, limit - used)
    return None


def _meminfo_available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
