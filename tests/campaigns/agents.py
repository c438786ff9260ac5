"""Agents of many frameworks against a scripted model: `make campaign RUN="agents --tasks 20 --programs agents_openai"`.

Each program of `e2e/clients/programs` does drawn tasks of ten calls and a total by a schema, in each of its ways,
through real prefill and decode workers. The calls and the total that the framework ends with must be the scripted ones.
With `--pause-s` workers are killed or drained meanwhile, one after another. `make test-clients` installs the
frameworks. Exits with 1 if a program fails or an outcome differs.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import this_machine
from bench.results import Cell, publish
from e2e.clients.addition_tasks import AdditionTask, drawn_task, task_argument
from e2e.clients.agent_programs import PROGRAMS
from e2e.clients.runs import Clients, installed

from baton_testing.engine.scripted_model import WORKER_FLAGS, write_scripted_model
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import service
from baton_testing.processes.worker_losses import WorkerLosses

COLUMNS = ("program", "way", "tasks", "as scripted", "killed or left", "seconds")
START_S, TASK_S = 240.0, 600.0
"""The longest time for a program to import its framework, and for a task in all ways."""


def run_program(clients: Clients, name: str, tasks: Sequence[AdditionTask]) -> dict[str, Any] | None:
    """Return each way's outcomes; None if the program failed, after printing why."""
    try:
        outcomes: dict[str, Any] = clients.program(name, task_argument(list(tasks)))
    except (AssertionError, subprocess.TimeoutExpired) as failure:
        print(f"{name}: {failure}", flush=True)
        return None
    return outcomes


def count_as_scripted(name: str, way: str, tasks: Sequence[AdditionTask], outcomes: Sequence[Any]) -> int:
    """Count the tasks that ended as their script says, and print the others."""
    as_scripted = 0
    for task, outcome in zip(tasks, outcomes, strict=True):
        if outcome == task.outcome():
            as_scripted += 1
        else:
            print(f"{name} {way}: expected {task.outcome()}\n  but got {outcome}", flush=True)
    return as_scripted


def rows_of(
    deployment: Deployment, folder: Path, name: str, tasks: Sequence[AdditionTask], pause_s: float | None, seed: int
) -> list[dict[str, Cell]]:
    """Run one program, and return a row for each of its ways."""
    limit_s = START_S + TASK_S * len(tasks)
    clients = Clients(installed(PROGRAMS[name]), deployment.base_url, folder, limit_s)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        losses = None
        if pause_s is not None:
            losses = stack.enter_context(WorkerLosses(deployment, pause_s, random.Random(seed)))
        outcomes = run_program(clients, name, tasks)
    common: dict[str, Cell] = {
        "tasks": len(tasks),
        "killed or left": losses.count if losses else 0,
        "seconds": round(time.monotonic() - began, 1),
    }
    if outcomes is None:
        return [{"program": name, "way": "all", "as scripted": 0, **common}]
    return [
        {"program": name, "way": way, "as scripted": count_as_scripted(name, way, tasks, ended), **common}
        for way, ended in outcomes.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.agents", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=20, help="drawn tasks for each way of a program")
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--pause-s", type=float, help="between two workers that die or leave; without it none does")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    tasks = [drawn_task(dice) for _ in range(arguments.tasks)]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as name, service() as starts:
        folder = Path(name)
        model = write_scripted_model(folder / "model", template_marks="<tool_call>")
        shape = Shape(prefill=2, decode=2, model=model, served_name="scripted", worker_flags=WORKER_FLAGS)
        with Deployment(folder / "deployment", shape, starts) as deployment:
            for program in arguments.programs:
                for row in rows_of(deployment, folder, program, tasks, arguments.pause_s, arguments.seed):
                    print(row, flush=True)
                    rows.append(row)
    publish("campaign_agents", this_machine(), ["Agents against a scripted model."], COLUMNS, rows)
    return 1 if any(row["as scripted"] != row["tasks"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
