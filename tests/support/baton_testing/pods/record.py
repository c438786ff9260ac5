"""The record of a run on real Pods, kept by the version of the server: `bench/results/e2e-v1.33.2.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import Machine

FOLDER = Path(__file__).parents[4] / "bench" / "results"
Json = dict[str, Any]


@dataclass
class Record:
    """The record of one run; `server` is the version that the server reports."""

    server: str
    nodes: int
    commit: str
    machine: Machine
    outcomes: dict[str, Json] = field(default_factory=dict)
    """By test: how it ended, and after how many seconds."""

    def ended(self, test: str, phase: str, outcome: str, seconds: float) -> None:
        """One phase of a test; a failure outlives what comes after it, and a skip is one of the first phase."""
        if phase != "call" and outcome == "passed":
            return
        if self.outcomes.get(test, {}).get("outcome") != "failed":
            self.outcomes[test] = {"outcome": outcome, "seconds": round(seconds, 1)}

    def as_json(self, measured: Json) -> Json:
        ends = [outcome["outcome"] for outcome in self.outcomes.values()]
        return {
            "machine": self.machine.as_json(),
            "server": self.server,
            "nodes": self.nodes,
            "commit": self.commit,
            **{outcome: ends.count(outcome) for outcome in ("passed", "failed", "skipped")},
            "tests": self.outcomes,
            "measured": measured,
        }

    def write(self, measured: Json, folder: Path = FOLDER) -> Path:
        """Write the record; returns its path. A later run on the same version takes its place."""
        path = folder / f"e2e-{self.server}.json"
        path.write_text(json.dumps(self.as_json(measured), indent=1) + "\n", encoding="utf-8")
        return path
