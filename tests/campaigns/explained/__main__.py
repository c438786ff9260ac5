"""Explains requests of real services: `make campaign RUN="explained delays"` and `RUN="explained time"`.

`delays` plants some twenty delays, one after another, and wants each named as the largest part of its request's record,
with the worker where one is to blame. `time` compares records with their clients' clocks: the time that no process
accounts for may be 5 ms and 2 % of the request in 95 of 100. On a machine whose processors are busy, threads wait for
one between any two steps: the waits of the processes and of the client are taken from the scheduler, and a request
counts as undisturbed if they were short. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from bench.machine import this_machine
from bench.results import Cell, percentile, publish

from baton_gateway.records.parts import meaning_of
from baton_gateway.records.request_record import RequestRecord
from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import service
from campaigns.explained.asking import ask, chat_body, record_of, unexplained_ns
from campaigns.explained.delays import NARROW, SMALL, WHOLE, Planted
from campaigns.explained.stage import ProxyLoop, Stage, tenants

MIB = 1 << 20
BLOCK_TOKENS, TOKEN_BYTES = 16, 4 * 2 * 2 * 32 * 4
ALLOWED_NS, ALLOWED_SHARE = 5_000_000, 0.02
UNDISTURBED_NS = 2_000_000
"""All threads together waited this long at most for a processor."""
PADDING_BYTES = 1_200_000
GARBAGE = """
import gc, signal, time


def collect(*_):
    kept = [[{}] for _ in range(200_000)]
    until = time.thread_time() + 0.8
    while time.thread_time() < until:
        gc.collect()
    del kept


signal.signal(signal.SIGUSR2, collect)
"""
"""Lets a signal make the gateway collect garbage for a while, before its first import."""


# Delays ---------------------------------------------------------------------------------------------------------------


def model_folder(folder: Path) -> Path:
    """Return a copy of the tiny model whose tokenizer is so large that helper processes load it."""
    shutil.copytree(tiny_llama.FOLDER, folder)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " " * PADDING_BYTES)
    return folder


def stages(folder: Path) -> list[tuple[Shape, Sequence[Planted]]]:
    """Return the services and the delays that are planted in each."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(GARBAGE)
    paths = os.pathsep.join((str(folder / "site"), os.environ.get("PYTHONPATH", "")))
    flags = ("--api-keys", str(tenants(folder / "tenants")), "--max-running", "8", "--park-s", "60")
    small = ("--kv-cache-bytes", str(30 * BLOCK_TOKENS * TOKEN_BYTES), "--landing-bytes", str(384 * TOKEN_BYTES))
    whole = Shape(
        decode=2,
        model=model_folder(folder / "model"),
        gateway_flags=flags,
        environment={"gateway": {"PYTHONPATH": paths}},
    )
    narrow = replace(whole, decode=1, gateway_flags=flags, decode_flags=("--max-sequences", "1"), environment={})
    tiny = replace(
        narrow,
        worker_flags=("--block-tokens", str(BLOCK_TOKENS), "--max-context-tokens", "384", "--dtype", "float32"),
        prefill_flags=("--kv-cache-bytes", str(64 * BLOCK_TOKENS * TOKEN_BYTES)),
        decode_flags=small,
    )
    return [(whole, WHOLE), (tiny, SMALL), (narrow, NARROW)]


def plant_all(folder: Path, wanted: str) -> list[dict[str, Cell]]:
    """Plant every delay whose name has the word `wanted` in it."""
    rows = []
    with service() as ready, ProxyLoop() as loop:
        for number, (shape, delays) in enumerate(stages(folder)):
            chosen = [planted for planted in delays if wanted in planted.name]
            if chosen:
                with Stage(folder / f"stage-{number}", shape, ready, loop) as stage:
                    for planted in chosen:
                        rows.append(plant_one(stage, planted))
                        print(rows[-1], flush=True)
    return rows


def plant_one(stage: Stage, planted: Planted) -> dict[str, Cell]:
    """Plant one delay, and compare what the request's record says."""
    roles = {}
    for worker in stage.workers:
        roles[str((worker.state() or {}).get("epoch", ""))[:8]] = worker.role
    try:
        timed = planted.plant(stage)
        record = record_of(stage.admin_port or 0, timed.id)
    except Exception as error:  # noqa: BLE001 (of one delay: the others are still planted)
        return {"planted": planted.name, "named": "NO", "largest part": f"{type(error).__name__}: {error}"[:120]}
    part, took = record.parts()[0]
    longest = max((span for span in record.spans if span.part == part), key=lambda span: span.duration_ns)
    role = roles.get(longest.worker, "")
    is_named = part in planted.parts and planted.worker in ("", role)
    where = ", ".join(word for word in (longest.detail, role) if word)
    row: dict[str, Cell] = {
        "planted": planted.name,
        "named": "yes" if is_named else "NO",
        "largest part": part + (f" ({where})" if where else ""),
        "means": meaning_of(part),
        "share %": round(100 * took / record.duration_ns),
        "took s": round(record.duration_ns / 1e9, 2),
    }
    if not is_named:
        print([(span.part, round(span.duration_ns / 1e6), span.worker) for span in record.spans], flush=True)
    return row


# Unexplained time -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """A record next to its client's clock."""

    took_ns: int
    unexplained_ns: int
    starved_ns: int
    """How long the service's threads and the client's waited for a processor meanwhile, together."""

    @property
    def excess_ns(self) -> float:
        """Return the unexplained time beyond the share that is allowed."""
        return self.unexplained_ns - ALLOWED_SHARE * self.took_ns


class Starvation:
    """How long the threads of processes waited for a processor, by the scheduler's own count."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def now_ns(self) -> int:
        """Return the sum over all threads so far, and over the calling one."""
        total = _waited_ns(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat"))
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += _waited_ns(task / "schedstat")
        return total


def _waited_ns(file: Path) -> int:
    try:
        return int(file.read_text().split()[1])
    except FileNotFoundError:  # the thread has ended
        return 0


def compare_times(folder: Path, count: int, minutes: float, seed: int) -> list[Compared]:
    """Ask until `count` requests were undisturbed, or the time is over."""
    dice, compared, until_s = random.Random(seed), list[Compared](), time.monotonic() + 60 * minutes
    with service() as ready, Deployment(folder / "service", Shape(), ready) as deployment:
        own = psutil.Process(deployment.gateway.pid)
        pids = [own.pid, *(child.pid for child in own.children(recursive=True))]
        starvation = Starvation([*pids, *(worker.child.pid for worker in deployment.workers)])
        while time.monotonic() < until_s and sum(c.starved_ns <= UNDISTURBED_NS for c in compared) < count:
            question = dice.choice(tiny_llama.LONG_ANSWERS) * dice.choice((1, 1, 3, 6))
            fields = {"max_tokens": dice.choice((1, 8, 24, 64)), "stream": dice.random() < 0.7}
            body = chat_body(question, **fields, **({"n": 2} if dice.random() < 0.1 else {}))
            before = starvation.now_ns()
            timed = ask(deployment.port, body)
            starved = starvation.now_ns() - before
            record: RequestRecord = record_of(deployment.admin_port or 0, timed.id)
            compared.append(Compared(timed.took_ns, unexplained_ns(timed, record), starved))
    return compared


def time_rows(compared: Sequence[Compared]) -> list[dict[str, Cell]]:
    """Return a row for all requests, and for those of each disturbance."""
    rows: list[dict[str, Cell]] = []
    for most_ms in (2, 10, 50, 250, None):
        chosen = [c for c in compared if most_ms is None or c.starved_ns <= most_ms * 1_000_000]
        if chosen:
            excess = [c.excess_ns / 1e6 for c in chosen]
            less = [(c.excess_ns - c.starved_ns) / 1e6 for c in chosen]
            rows.append(
                {
                    "waited for a processor": "any time" if most_ms is None else f"{most_ms} ms at most",
                    "requests": len(chosen),
                    "unexplained beyond 2 %, p50 ms": round(percentile(excess, 50), 2),
                    "p95 ms": round(percentile(excess, 95), 2),
                    "p95 ms less those waits": round(percentile(less, 95), 2),
                }
            )
    return rows


def judge_times(compared: Sequence[Compared]) -> int:
    """Print the verdict, and return the exit code. Without an undisturbed request nothing is shown."""
    undisturbed = [c.excess_ns for c in compared if c.starved_ns <= UNDISTURBED_NS]
    if not undisturbed:
        print(f"VERDICT: not shown: in each of {len(compared)} requests threads waited for a processor")
        return 1
    p95_ns = percentile(undisturbed, 95)
    is_held = p95_ns <= ALLOWED_NS
    figure = f"unexplained time beyond {ALLOWED_SHARE:.0%} is {p95_ns / 1e6:.2f} ms at p95"
    bar = f"{len(undisturbed)} undisturbed requests (bar {ALLOWED_NS / 1e6:g} ms)"
    print(f"VERDICT: {'held' if is_held else 'missed'}: {figure} of {bar}")
    return 0 if is_held else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("delays", "time"))
    parser.add_argument("--only", default="", metavar="WORD", help="delays whose name has this word in it")
    parser.add_argument("--count", type=int, default=200, help="undisturbed requests (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=55)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="baton-explained-") as temporary:
        if arguments.what == "delays":
            rows = plant_all(Path(temporary), arguments.only)
            columns = ("planted", "named", "largest part", "means", "share %", "took s")
            if not arguments.only:
                notes = [f"{len(rows)} delays, planted one after another in real services."]
                publish("explained_delays", this_machine(), notes, columns, rows)
            return 0 if all(row["named"] == "yes" for row in rows) else 1
        compared = compare_times(Path(temporary), arguments.count, arguments.minutes, arguments.seed)
    rows = time_rows(compared)
    for row in rows:
        print(row)
    publish("explained_time", this_machine(), [f"{len(compared)} requests of one client."], tuple(rows[0]), rows)
    return judge_times(compared)


if __name__ == "__main__":
    sys.exit(main())
