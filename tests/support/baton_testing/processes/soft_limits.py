"""Soft limits of other processes that are lowered for a time, by several at once too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil


class SoftLimits:
    """The lowest of the limits that are open counts. The limit before the first change comes back with the end
    of the last, and needs no rights: hard limits stay.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[psutil.Process, int], int] = {}
        self._open: dict[tuple[psutil.Process, int], list[int]] = {}

    @contextlib.contextmanager
    def lowered(self, process: psutil.Process, resource: int, soft: int) -> Iterator[None]:
        """`resource` is one of `psutil.RLIMIT_…`. Raises psutil.NoSuchProcess."""
        key = process, resource
        before, hard = process.rlimit(resource)
        self._before.setdefault(key, before)
        limits = self._open.setdefault(key, [])
        limit = soft if hard == psutil.RLIM_INFINITY else min(soft, hard)
        limits.append(limit)
        try:
            process.rlimit(resource, (min(limits), hard))
            yield
        finally:
            limits.remove(limit)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(resource, (min(limits, default=self._before[key]), hard))
            if not limits:
                del self._before[key], self._open[key]
