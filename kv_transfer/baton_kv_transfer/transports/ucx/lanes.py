"""Which lanes UCX writes over, from its own log: it prints a table per kind of connection when it first writes there.

    | baton-… inter-node cfg#2                                    |
    | remote memory write by ucp_put* from host memory to host     |
    | Range  | Description | Config                                |
    | 0..inf | zero-copy   | 52% on tcp/lo and 48% on tcp/eth0     |

The last row is what large writes use. Connections of the same kind share a table, so a lane is known for certain only
while all connections of this process have the same; otherwise it is unknown, and said so.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from baton_wire.listening.complaints import Complaints

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
_HEAD = re.compile(r"\|\s*\S+ (?P<place>self|intra-node|inter-node) cfg#(?P<number>\d+)\s*\|")
_PUT = re.compile(r"\|\s*remote memory write by ucp_put\S* from (?P<source>\S+(?: memory)?) ")
_ROW = re.compile(r"\|\s*\d\S*\.\.(?P<end>\S+)\s*\|[^|]*\|\s*(?P<config>[^|]+?)\s*\|")
_COMPLAINT = re.compile(r"UCX\s+(?:WARN|ERROR|FATAL)\s+(?P<text>.*)")
MAX_READ = 1 << 20
_PUNCH_HOLE = 0x03
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE"""
SETTINGS = {"UCX_LOG_LEVEL": "info", "UCX_PROTO_INFO": "y", "UCX_LOG_FILE": ""}


class LaneLog:
    """UCX's log in anonymous memory. Without one (None) every lane is unknown."""

    def __init__(self, descriptor: int | None = -1) -> None:
        self._descriptor = os.memfd_create("ucx-log") if descriptor == -1 else descriptor
        self._complaints = Complaints(log, level=logging.WARNING)
        self._read = 0
        self._text = ""
        self._lanes: dict[str, str] = {}

    @classmethod
    def of_this_process(cls) -> LaneLog:
        """The log of this process; it reads nothing where the environment already sets up UCX's log."""
        return cls(None if any(name in os.environ for name in SETTINGS) else -1)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """UCX reads its settings when its first user loads it; child processes must not inherit these."""
        if self._descriptor is None:
            yield
            return
        os.environ.update(SETTINGS, UCX_LOG_FILE=f"/proc/self/fd/{self._descriptor}")
        try:
            yield
        finally:
            for name in SETTINGS:
                os.environ.pop(name, None)

    def lane(self) -> str:
        """Name of the lane that large writes to other processes take."""
        self._look()
        names = set(self._lanes.values())
        return names.pop() if len(names) == 1 else UNKNOWN

    def _look(self) -> None:
        if self._descriptor is None:
            return
        ctypes.CDLL(None).fflush(None)  # UCX's log is a buffered stream of this process
        new = os.pread(self._descriptor, MAX_READ, self._read)
        self._read += len(new)
        _give_back(self._descriptor, self._read)
        self._text += new.decode("utf-8", "replace")
        lines = self._text.split("\n")
        self._text = lines.pop()
        for line in lines:
            complaint = _COMPLAINT.search(line)
            if complaint is not None:
                self._complaints.say("UCX", complaint["text"])
        self._lanes.update(put_lanes(lines))


def _give_back(descriptor: int, read: int) -> None:
    """Return the memory of the text that was read; UCX continues writing after it. Without effect where the kernel
    cannot."""
    end = read // mmap.PAGESIZE * mmap.PAGESIZE
    if end:
        ctypes.CDLL(None).fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end))


def put_lanes(lines: list[str]) -> dict[str, str]:
    """Lane of large writes by connection kind (`inter-node cfg#2`), connections to this process itself left out."""
    lanes: dict[str, str] = {}
    kind, is_put = "", False
    for line in lines:
        head = _HEAD.search(line)
        if head is not None:
            kind, is_put = ("" if head["place"] == "self" else f"{head['place']} cfg#{head['number']}"), False
            continue
        if "|" not in line:
            if "+--" not in line:
                kind, is_put = "", False
            continue
        if kind and _PUT.search(line):
            is_put = True
            continue
        row = _ROW.search(line)
        if is_put and row is not None and row["end"] == "inf":
            lanes[kind] = row["config"]
            is_put = False
    return lanes
