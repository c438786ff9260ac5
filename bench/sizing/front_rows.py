"""Rows of the fronts: one run of one policy at one value of its knob. Kept in a table that a later run goes on with."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FIXED = "fixed"
"""The policy of fixed pools; their knob is the size, prefill+decode."""


@dataclass(frozen=True, slots=True)
class Row:
    split: str
    load: str
    seconds: float
    """How long the load lasts."""
    seed: int
    startup_s: float
    policy: str
    knob: str
    """Its value; prefill+decode of a fixed pool; empty: the default."""
    ttft: float
    tpot: float
    """Shares of requests over each target."""
    misses: float
    """Share of requests that miss either."""
    gpu_hours: float
    moves: int

    @property
    def run(self) -> tuple[str, int, float, str, str]:
        """The key of the run; sizes of a fixed pool are one run, and it knows no start-up."""
        if self.policy == FIXED:
            return self.load, self.seed, 0.0, FIXED, ""
        return self.load, self.seed, self.startup_s, self.policy, self.knob


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(
                line["split"],
                line["load"],
                float(line["seconds"]),
                int(line["seed"]),
                float(line["startup_s"]),
                line["policy"],
                line["knob"],
                float(line["ttft"]),
                float(line["tpot"]),
                float(line["misses"]),
                float(line["gpu_hours"]),
                int(line["moves"]),
            )
            for line in csv.DictReader(file)
        ]


def append(path: Path, rows: Iterable[Row]) -> None:
    """Adds rows to the table, which gets its header with the first."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
