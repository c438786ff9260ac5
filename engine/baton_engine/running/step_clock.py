"""Clocks that report when a launched step is done and how long it took: at once on a CPU, by events on a GPU."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class StepClock(Protocol):
    """One step: made when the step starts, `stop` after its last operation was launched."""

    def stop(self) -> None: ...

    def is_done(self) -> bool: ...

    def wait(self) -> float:
        """Wait until the step is done; seconds that it took."""
        ...


class HostClock:
    """Operations run when they are called, so a stopped step is done."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._duration_s = 0.0

    def stop(self) -> None:
        self._duration_s = time.perf_counter() - self._start

    def is_done(self) -> bool:
        return True

    def wait(self) -> float:
        return self._duration_s


class CudaClock:
    """Events on the current stream around the step's operations and the copy of its results."""

    def __init__(self) -> None:
        self._start = torch.Event("cuda", enable_timing=True)
        self._end = torch.Event("cuda", enable_timing=True)
        self._start.record()

    def stop(self) -> None:
        self._end.record()

    def is_done(self) -> bool:
        return self._end.query()

    def wait(self) -> float:
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1_000


def start_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
