"""Lanes of a campaign: the same campaign several times next to each other, each a process with a folder, ports and a
seed of its own. What all lanes found becomes one verdict.

A lane writes its verdict as JSON at its end, and ends by itself within its time. One that does not is killed with
everything that it started, and the verdict of all names it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from bench.machine import Machine, this_machine
from bench.results import Cell, publish, table, write

from baton_testing.processes.child_process import Child, orphans_of

CORES_A_LANE = 3
"""A gateway of two processes, its workers and its clients."""
GRACE_S = 110.0
"""For a lane whose time is over: to stop its processes, recover what they left, and judge it."""
MOST_PROBLEMS = 50
POLL_S = 0.5
NAME, COUNT = "what", "count"


@dataclass(slots=True)
class LaneVerdict:
    """What one lane found, or all of them together: counts by name, and each rule that was broken."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, lane: str, other: LaneVerdict) -> None:
        self.counts.update(other.counts)
        self.problems.extend(f"{lane}: {problem}" for problem in other.problems)

    def save(self, path: Path, name: str, machine: Machine, notes: Sequence[str]) -> None:
        """Write one JSON file, which is read after the campaign has ended."""
        draft = path.with_suffix(".draft")
        record: dict[str, object] = {"campaign": name, "holds": not self.problems, "machine": machine.as_json()}
        record |= {"notes": list(notes), "counts": dict(self.counts), "num_problems": len(self.problems)}
        write(draft, record | {"problems": self.problems[:MOST_PROBLEMS]})
        draft.replace(path)


def read_verdict(path: Path) -> LaneVerdict:
    """Raises OSError and ValueError."""
    content: dict[str, Any] = json.loads(path.read_text())
    return LaneVerdict(Counter(content["counts"]), list(content["problems"]))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one lane does: amounts by the names of the campaign's flags, until its time is over."""

    amounts: Mapping[str, int]
    seed: int
    until_s: float
    """By the monotonic clock: a lane that is not done then stops and is judged, which is a problem of its verdict."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign that can run in lanes: its amounts with their defaults are shared among them."""

    name: str
    description: str | None
    amounts: Mapping[str, int]
    run: Callable[[Path, Plan], LaneVerdict]

    def main(self) -> int:
        """Run by the flags of the command line; 1 where a rule was broken."""
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for name, default in self.amounts.items():
            parser.add_argument(f"--{name}", type=int, default=default, help="(default %(default)s)")
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--lanes", type=int, default=1, help="(default 1; 0: as many as there are processors for)")
        parser.add_argument("--within-s", type=float, default=86_400.0, help="stop and judge after these seconds")
        parser.add_argument("--verdict", type=Path, help="file for the outcome as JSON, instead of bench/results")
        parser.add_argument("--keep", type=Path, help="folder for logs and data (default: thrown away)")
        options = parser.parse_args()
        machine, began = this_machine(), time.monotonic()
        os.nice(2)
        amounts = {name: int(getattr(options, name)) for name in self.amounts}
        lanes = max(1, min(options.lanes or lanes_for(CORES_A_LANE), *amounts.values()))
        with tempfile.TemporaryDirectory(prefix=f"baton-{self.name}-") as temporary:
            folder: Path = options.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            if lanes == 1:
                outcome = self.run(folder, Plan(amounts, options.seed, began + options.within_s))
            else:
                outcome = self._run_lanes(folder, amounts, options.seed, lanes, options.within_s)
        notes = [f"{lanes} lanes, seed {options.seed}, {time.monotonic() - began:.0f} s."]
        rows: list[dict[str, Cell]] = [{NAME: what, COUNT: count} for what, count in outcome.counts.items()]
        rows.append({NAME: "problems", COUNT: len(outcome.problems)})
        if options.verdict is None:
            publish(self.name, machine, notes + outcome.problems[:MOST_PROBLEMS], (NAME, COUNT), rows)
        else:
            print("\n".join((str(machine), *notes, *outcome.problems[:MOST_PROBLEMS], table((NAME, COUNT), rows))))
            outcome.save(options.verdict, self.name, machine, notes)
        return 1 if outcome.problems else 0

    def _run_lanes(
        self, folder: Path, amounts: Mapping[str, int], seed: int, lanes: int, within_s: float
    ) -> LaneVerdict:
        shares = {name: shares_of(amount, lanes) for name, amount in amounts.items()}
        flags = [[f"--{name}={shares[name][number]}" for name in shares] for number in range(lanes)]
        seeds = [f"--seed={seed * 1_000 + number}" for number in range(lanes)]
        module = f"campaigns.{self.name}"
        return run_lanes([(module, *flags[at], seeds[at]) for at in range(lanes)], folder, within_s)


def lanes_for(cores_a_lane: int) -> int:
    """How many lanes the processors of this process suffice for: at least one."""
    return max(1, len(os.sched_getaffinity(0)) // cores_a_lane)


def shares_of(whole: int, lanes: int) -> list[int]:
    """`whole` in `lanes` parts that differ by one at most."""
    return [whole // lanes + (number < whole % lanes) for number in range(lanes)]


def run_lanes(lanes: Sequence[Sequence[str]], folder: Path, within_s: float) -> LaneVerdict:
    """Run modules with their flags next to each other, each for at most `within_s` and GRACE_S. Nothing of them is left
    afterwards.
    """
    until_s = time.monotonic() + within_s + GRACE_S
    whole, children = LaneVerdict(), dict[str, Child]()
    try:
        for number, argv in enumerate(lanes):
            own = folder / f"lane-{number}"
            own.mkdir(parents=True, exist_ok=True)
            _verdict_of(own).unlink(missing_ok=True)
            kept = (f"--within-s={within_s:g}", f"--keep={own}", f"--verdict={_verdict_of(own)}")
            paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
            children[own.name] = Child(own.name, ("-m", *argv, "--lanes=1", *kept), folder, paths)
        while time.monotonic() < until_s and any(child.is_running() for child in children.values()):
            for child in children.values():
                child.family()  # remembers what the lane has started
            time.sleep(POLL_S)
    finally:
        late = [name for name, child in children.items() if child.is_running()]
        families = [process for child in children.values() for process in child.family()]
        for child in children.values():
            child.stop(5.0)
    for name, child in children.items():
        whole.add(name, _outcome_of(child, _verdict_of(folder / name), name in late))
    if left := orphans_of(families, 10.0):
        whole.problems.append(f"processes that were left: {[process.pid for process in left]}")
    return whole


def _verdict_of(own: Path) -> Path:
    return own / "verdict.json"


def _outcome_of(child: Child, path: Path, is_late: bool) -> LaneVerdict:
    try:
        return read_verdict(path)
    except (OSError, ValueError):
        how = "did not end in time" if is_late else "ended without a verdict"
        return LaneVerdict(problems=[f"{how}: {child.output()[-1500:]}"])


def kill_one_process(gateway: int, dice: random.Random) -> None:
    """Kill one of the serving processes of the gateway whose supervisor has this id, if there is one."""
    serving = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(gateway).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just been killed, or ended
                serving += [child] if "baton_gateway" in child.cmdline() else []
    if serving:
        dice.choice(serving).kill()
