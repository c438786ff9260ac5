"""Sums of a campaign that is run in slices: kept in a file, so that the next slice goes on where this one ended.

The order of a campaign's runs is the same in every slice: it follows from the code and the seed alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = 200
"""Complaints that are kept in full."""


class Tally:
    """Counts of the runs so far. `path` None: nothing is kept, the campaign runs in one go."""

    def __init__(self, name: str, path: Path | None, budget_s: float) -> None:
        """Raises ValueError for a file of another campaign."""
        self._name, self._path = name, path
        self._until, self._began = time.monotonic() + budget_s, time.process_time()
        self.next, self.slices, self._cpu_s = 0, 1, 0.0
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        if path is not None and path.exists():
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if record["name"] != name:
                raise ValueError(f"{path}: holds {record['name']!r}, not {name!r}")
            self.next, self.slices, self._cpu_s = record["next"], record["slices"] + 1, record["cpu_s"]
            self.counts, self.wrong = Counter(record["counts"]), record["wrong"]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all slices."""
        return self._cpu_s + time.process_time() - self._began

    def numbers(self, end: int) -> Iterator[int]:
        """The runs that are left, as long as the budget lasts. One counts when the next is asked for."""
        while self.next < end and time.monotonic() < self._until:
            yield self.next
            self.next += 1
            if self.next % 20 == 0:
                self.save()
        self.save()

    def add(self, complaint: str) -> None:
        """Something that must hold did not."""
        print(complaint, flush=True)
        self.counts["wrong"] += 1
        self.wrong = [*self.wrong, complaint][:KEPT]

    def save(self) -> None:
        if self._path is None:
            return
        record = {
            "name": self._name,
            "next": self.next,
            "slices": self.slices,
            "cpu_s": self.cpu_s,
            "counts": dict(self.counts),
            "wrong": self.wrong,
        }
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(record), encoding="utf-8")
        beside.replace(self._path)
