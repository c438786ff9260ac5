"""The machine that a measurement ran on, as one line and as JSON: no number is reported without it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    load_1m: float
    """Load average when the run began: more than a little means that others used the machine too."""
    day: str

    def __str__(self) -> str:
        return (
            f"{self.day}: {self.cores} x {self.cpu}, {self.memory_gib:.0f} GiB, Python {self.python}, "
            f"torch {self.torch}, load {self.load_1m:.1f} at start"
        )

    def as_json(self) -> dict[str, str | int | float]:
        return asdict(self)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        python=platform.python_version(),
        torch=torch.__version__,
        load_1m=round(os.getloadavg()[0], 2),
        day=datetime.now(UTC).date().isoformat(),
    )
