"""Long runs of the deterministic simulation: many seeds, the faults that took effect by kind, every violation.

`make campaign RUN="simulation --seeds 20000 --jobs 2"`. Exits with 1 when a seed fails; each failing seed is printed.
With `--journal FILE` every 50 seeds leave a line there, and journaled seeds are not run again: a long run can be ended
and gone on with, at the same commit of code without changes.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.simulation.scenario import scenario
from baton_testing.simulation.world import SimWorld

CHUNK = 50
Chunk = tuple[int, int]


@dataclass(slots=True)
class Tally:
    """Counts of some seeds."""

    seeds: int = 0
    events: int = 0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.cpu_s += other.cpu_s
        self.faults += other.faults
        self.ends += other.ends
        self.failures += other.failures


class Journal:
    """The tallies of this commit's chunks, in a file or only for this run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.commit = commit()
        self.known: dict[Chunk, Tally] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            entry = json.loads(line)
            if entry["commit"] == self.commit:
                tally = Tally(**entry["tally"])
                tally.faults, tally.ends = Counter(tally.faults), Counter(tally.ends)
                tally.failures = [(seed, text) for seed, text in tally.failures]
                self.known[tuple(entry["chunk"])] = tally

    def add(self, chunk: Chunk, tally: Tally) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                counts = {field.name: getattr(tally, field.name) for field in fields(tally)}
                file.write(json.dumps({"commit": self.commit, "chunk": chunk, "tally": counts}) + "\n")


def commit() -> str:
    """The checkout's commit, with a plus sign when tracked files were changed."""
    words = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    name, changes = (
        subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout for arguments in words
    )
    return name.strip() + ("+" if changes.strip() else "")


def run_chunk(first: int, end: int) -> Tally:
    """Seeds [first, end) in this process."""
    logging.disable(logging.WARNING)
    tally = Tally()
    began = time.process_time()
    for seed in range(first, end):
        world = SimWorld(scenario(seed))
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failing seed is a result
            tally.failures.append((seed, f"{type(error).__name__}: {error}"))
        tally.seeds += 1
        tally.events += world.heap.events
        tally.faults.update({str(kind): count for kind, count in world.faults.items()})
        for client in world.clients:
            end_of = "gateway killed" if client.ending is None else client.ending.outcome.value
            code = None if client.ending is None or client.ending.problem is None else client.ending.problem.code
            tally.ends[end_of if code is None else f"{end_of}: {code}"] += 1
    tally.cpu_s = time.process_time() - began
    return tally


def run(chunks: list[Chunk], journal: Journal, jobs: int) -> Tally:
    """All seeds, with a line of progress now and then."""
    total, reported = Tally(), 0
    for tally in _tallies(chunks, journal, jobs):
        total.add(tally)
        for seed, text in tally.failures:
            print(f"seed {seed}: {text}", flush=True)
        if total.seeds - reported >= 1_000 or total.seeds == chunks[-1][1] - chunks[0][0]:
            reported = total.seeds
            faults = sum(total.faults.values())
            print(f"{reported:>7,} seeds  {faults:>9,} faults  {len(total.failures)} violations", flush=True)
    return total


def _tallies(chunks: list[Chunk], journal: Journal, jobs: int) -> Iterator[Tally]:
    yield from (journal.known[chunk] for chunk in chunks if chunk in journal.known)
    missing = [chunk for chunk in chunks if chunk not in journal.known]
    with ProcessPoolExecutor(jobs) as pool:
        for chunk, tally in zip(
            missing, pool.map(run_chunk, *zip(*missing, strict=True)) if missing else (), strict=True
        ):
            journal.add(chunk, tally)
            yield tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--journal", type=Path)
    arguments = parser.parse_args()
    machine = this_machine()
    end = arguments.first + arguments.seeds
    chunks = [(first, min(first + CHUNK, end)) for first in range(arguments.first, end, CHUNK)]
    journal = Journal(arguments.journal)
    total = run(chunks, journal, arguments.jobs)
    rows: list[dict[str, Cell]] = [
        {"what": "seeds", "count": total.seeds},
        {"what": "events", "count": total.events},
        {"what": "violations", "count": len(total.failures)},
        {"what": "processor seconds", "count": round(total.cpu_s)},
        {"what": "injected faults", "count": sum(total.faults.values())},
    ]
    rows += [{"what": f"fault: {kind}", "count": count} for kind, count in total.faults.most_common()]
    rows += [{"what": f"request: {end}", "count": count} for end, count in total.ends.most_common()]
    notes = [f"Seeds {arguments.first} to {end - 1} of the whole-deployment simulation, at commit {journal.commit}."]
    publish("simulation", machine, notes, ("what", "count"), rows)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
