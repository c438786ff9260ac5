"""The memory that a worker may use on this machine: the kernel's figure or the container's limit, whichever is less."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: str) -> int:
    """Bytes that could be allocated now on `device` (`cpu` or `cuda`)."""
    if device == "cuda":
        import torch  # not where only the machine's own memory is asked for

        free, _ = torch.cuda.mem_get_info()
        return int(free)
    available = _available(MEMINFO.read_text(encoding="ascii"))
    limit = _cgroup_room(CGROUP)
    return available if limit is None else min(available, limit)


def _available(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("MemAvailable is missing from /proc/meminfo")


def _cgroup_room(root: Path) -> int | None:
    """Limit minus use of this process's control group (v2); None when there is no limit."""
    try:
        limit = (root / "memory.max").read_text(encoding="ascii").strip()
        used = (root / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
