"""The memory that a worker may use on this machine: the kernel's figure or the container's limit, whichever is less."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60
"""Version 1 of control groups writes a figure beyond this where there is no limit."""


def free_bytes(device: str) -> int:
    """Bytes that could be allocated now on `device` (`cpu` or `cuda`)."""
    if device == "cuda":
        import torch  # not where only the machine's own memory is asked for

        free, _ = torch.cuda.mem_get_info()
        return int(free)
    available = _available(MEMINFO.read_text(encoding="ascii"))
    limit = _cgroup_room(CGROUP, _text(MEMBERSHIP) or "")
    return available if limit is None else min(available, limit)


def _available(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("MemAvailable is missing from /proc/meminfo")


def _cgroup_room(root: Path, membership: str) -> int | None:
    """The least room that this process's control groups leave, of both versions; None when there is no limit.

    Every group above it limits too. Cached file pages count as used, though the kernel gives them up.
    """
    rooms = []
    for line in membership.splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _rooms(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            rooms += _rooms(root / "memory", path, *names)
    return min(rooms, default=None)


def _rooms(root: Path, path: str, limit_name: str, used_name: str, cached_name: str) -> list[int]:
    """The room of a group and of each one above it. In a container the path may be that of the host: only what exists
    is read."""
    parts = [part for part in path.split("/") if part and part != ".."]
    rooms = []
    for depth in range(len(parts) + 1):
        group = root.joinpath(*parts[:depth])
        limit, used = _text(group / limit_name), _text(group / used_name)
        if limit is None or used is None or not limit.isdecimal() or int(limit) >= UNLIMITED:
            continue
        stat = dict(line.split(" ", 1) for line in (_text(group / "memory.stat") or "").splitlines() if " " in line)
        cached = min(int(used), int(stat.get(cached_name, "0")))
        rooms.append(max(0, int(limit) - int(used) + cached))
    return rooms


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
