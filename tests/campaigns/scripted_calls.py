"""Scripted answers through real processes: `make campaign RUN="scripted_calls --answers 40 --tasks 20"`.

For each format: answers written by hand and drawn ones come through gateway, prefill, hand-over and decode, whole and
streamed, and must be what the format's reader makes of the same text alone. While they come, workers of both roles are
killed, and decode workers are terminated. Marks are special tokens or spelled in letters.

Then tasks of several turns: each is done without a kill, and again with each of `--kills` in the middle of a call. Both
transcripts must be the scripted one. Exits with 1 if an answer or a transcript differs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_gateway.answers.output_parts import WholeAnswer
from baton_testing.engine.scripted_model import WORKER_FLAGS, write_scripted_model
from baton_testing.gateway.answer_transcripts import FAMILIES
from baton_testing.processes.child_process import get_text
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import service
from baton_testing.processes.scripted_answers import Asked, expected_answer, token_marks, transcripts
from baton_testing.processes.scripted_tasks import Kill, TaskRun, draw_task
from baton_testing.processes.worker_losses import WorkerLosses

AT_ONCE = 4
MARKS = ("tokens", "letters")
COLUMNS = ("format", "marks", "part", "answers or turns", "killed or left", "continued", "differences", "seconds")


def ask(client: openai.OpenAI, text: str, marks: Collection[str]) -> tuple[WholeAnswer, WholeAnswer]:
    asked = Asked(client, text, marks=marks)
    return asked.whole(), asked.streamed()


def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=180)


def run_answers(
    deployment: Deployment, url: str, family: str, with_marks: bool, arguments: argparse.Namespace
) -> dict[str, Cell]:
    """Ask for single answers while workers die at any time."""
    texts = transcripts(family, arguments.answers, arguments.seed)
    marks = token_marks(family) if with_marks else []
    differences = 0
    with (
        WorkerLosses(deployment, arguments.pause_s, random.Random(arguments.seed)) as losses,
        _client(url) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        for text, answers in zip(texts, pool.map(lambda text: ask(client, text, marks), texts), strict=True):
            differences += _report(family, text, expected_answer(family, text, with_marks), answers)
    return {"answers or turns": 2 * len(texts), "killed or left": losses.count, "differences": differences}


def run_tasks(
    deployment: Deployment, url: str, family: str, with_marks: bool, arguments: argparse.Namespace
) -> dict[str, Cell]:
    """Do each task without kills, then with one of each kind in the middle of a call."""
    dice = random.Random(f"{family} {with_marks} {arguments.seed}")
    turns = differences = 0
    with _client(url) as client:
        task_run = TaskRun(deployment, client, dice)
        for number in range(arguments.tasks):
            task = draw_task(dice, family, arguments.kills, with_marks, number)
            transcripts_of_task = [task_run.do(task, with_kills=with_kills) for with_kills in (False, True)]
            turns += sum(map(len, transcripts_of_task))
            for text, expected, *answers in zip(task.texts, task.expected(), *transcripts_of_task, strict=True):
                differences += _report(family, text, expected, answers)
    return {"answers or turns": turns, "killed or left": task_run.killed, "differences": differences}


def _continued(url: str) -> int:
    """Return how many answers went on with another worker after their clients had a part of them."""
    name = "baton_gateway_migrations_total "
    return sum(
        int(float(line.removeprefix(name))) for line in get_text(f"{url}/metrics").splitlines() if line.startswith(name)
    )


def _report(family: str, text: str, expected: WholeAnswer, answers: Sequence[WholeAnswer]) -> int:
    """Print the answers that differ, and return their number."""
    differences = [answer for answer in answers if answer != expected]
    for answer in differences:
        print(f"{family}: {text!r}\n  expected {expected}\n  but got  {answer}", flush=True)
    return len(differences)


def run_families(folder: Path, with_marks: bool, arguments: argparse.Namespace) -> Iterator[dict[str, Cell]]:
    """Run both parts for each format, and yield a row for each."""
    model = write_scripted_model(folder / "model", with_marks=with_marks)
    shape = Shape(prefill=2, decode=2, model=model, served_name="scripted", worker_flags=WORKER_FLAGS)
    with service() as starts, Deployment(folder / "deployment", shape, starts) as deployment:
        for family in arguments.formats:
            thoughts = "harmony" if family == "harmony" else "think"
            flags = (f"--tool-format={family}", f"--reasoning-format={thoughts}")
            url = deployment.start_gateway(f"gateway-{family}", flags)
            for part, run_part, count in (
                ("answers", run_answers, arguments.answers),
                ("tasks", run_tasks, arguments.tasks),
            ):
                if count:
                    began = time.monotonic()
                    before = _continued(url)
                    row = run_part(deployment, url, family, with_marks, arguments)
                    row["continued"] = _continued(url) - before
                    yield {
                        "format": family, "marks": "tokens" if with_marks else "letters", "part": part, **row,
                        "seconds": round(time.monotonic() - began, 1),
                    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.scripted_calls", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--answers", type=int, default=20, help="drawn single answers for each format")
    parser.add_argument("--pause-s", type=float, default=2.0, help="between two workers that die among single answers")
    parser.add_argument("--tasks", type=int, default=5, help="tasks of several turns for each format")
    parser.add_argument("--kills", nargs="*", default=list(Kill), type=Kill, choices=list(Kill), help="in each task")
    parser.add_argument("--formats", nargs="*", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--marks", nargs="*", default=MARKS, choices=MARKS, help="how the model writes marks")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[dict[str, Cell]] = []
    for marks in arguments.marks:
        with tempfile.TemporaryDirectory() as folder:
            for row in run_families(Path(folder), marks == "tokens", arguments):
                print(row, flush=True)
                rows.append(row)
    notes = ["Scripted answers and tasks through real processes while workers die."]
    publish("campaign_scripted_calls", this_machine(), notes, COLUMNS, rows)
    return 1 if any(row["differences"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
