"""The processes below a process, from /proc, with identities that survive the reuse of process ids. Linux only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process that ever was: no two have the same number and start."""

    pid: int
    started: int
    """Clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class _Stat:
    identity: Identity
    parent: int
    state: str


def descendants(pid: int) -> frozenset[Identity]:
    """All living processes below `pid`, itself excluded."""
    children: defaultdict[int, list[_Stat]] = defaultdict(list)
    for path in PROC.glob("[0-9]*"):
        stat = _stat(int(path.name))
        if stat is not None:
            children[stat.parent].append(stat)
    found: set[Identity] = set()
    queue = [pid]
    while queue:
        below = children[queue.pop()]
        found.update(stat.identity for stat in below)
        queue += [stat.identity.pid for stat in below]
    return frozenset(found)


def is_alive(process: Identity) -> bool:
    """Whether this very process still runs; one that ended and was not reaped yet does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.identity == process and stat.state != ZOMBIE


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name before may hold spaces and brackets
    return _Stat(Identity(pid, int(fields[19])), int(fields[1]), fields[0])
