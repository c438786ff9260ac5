"""Workers with several ranks, a GPU for each: hand-overs between degrees, and ranks that are killed under load.

    python -m bench gpu_ranked_fleets handover --fleets 1:2 2:1 2:2 1:4
    python -m bench gpu_ranked_fleets kills --fleets 1:2,1 2:2 1:4 --seconds 60

A fleet is the degrees of its prefill workers and those of its decode workers: `1:2,1` has one prefill worker of one
rank, and two decode workers of two ranks and of one. GPUs are given out in order; where they do not suffice, the last
workers share some. Llama-3.1-8B's shape with random weights; on a machine without GPUs the tiny trained model.

handover  bfloat16, one request at a time, by prompt length: from grant to KV verified, and what a client sees
kills     float32, so that a batch changes no token: answers are asked for alone, then under load, then under load while
          ranks get SIGKILL or SIGSTOP in turn and workers are started again. Lost answers, and tokens that differ
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import psutil
import torch
from bench.engine.gpu import LLAMA_8B
from bench.machine import this_machine
from bench.results import FOLDER, Cell, percentile, publish, write
from bench.serving.load import drive, random_prompt
from bench.serving.offline import model_folder
from bench.serving.placed_workers import increase, scrape_series

from baton_local.client import Answer, AnswerEnd, ClientRequest, completion, open_session, send
from baton_testing.processes.child_process import Child
from baton_testing.processes.deployment import Deployment, Shape, Worker

MODEL: Final = "ranks"
GIB: Final = 1 << 30
LENGTHS: Final = (1_024, 4_096, 8_192, 16_384)
TINY_LENGTHS: Final = (64, 256)
ROUNDS: Final = 3
ALONE_TOKENS: Final = 16
PROMPTS: Final = 24
LANES: Final = 8
ANSWER_TOKENS: Final = 48
ANSWER_S: Final = 120.0
NOTICED_S: Final = 20.0
"""Longest wait for a worker to end that has lost a rank."""
COLUMNS: Final = (
    *("fleet", "part", "prompt", "hand-over ms", "TTFT ms", "token 1→2 ms", "TPOT ms"),
    *("answers", "lost", "equal", "other tokens", "kills", "ended s, most", "ready s, most"),
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Degrees of the workers by role."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises argparse.ArgumentTypeError."""
        try:
            prefill, decode = (tuple(int(degree) for degree in side.split(",")) for side in text.split(":"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not DEGREES:DEGREES, such as 1:2,1") from None
        return cls(prefill, decode)

    def __str__(self) -> str:
        return ":".join(",".join(map(str, side)) for side in (self.prefill, self.decode))

    def slots(self, gpus: Sequence[str]) -> list[Slot]:
        """A place for each worker. The last ones share GPUs if these do not suffice."""
        slots, taken = list[Slot](), 0
        for role, degrees in (("prefill", self.prefill), ("decode", self.decode)):
            for degree in degrees:
                first = min(taken, len(gpus) - degree)
                if first < 0:
                    raise ValueError(f"{degree} ranks have {len(gpus)} GPUs: each needs one")
                slots.append(Slot(role, degree, tuple(gpus[first : first + degree])))
                taken = first + degree
        return slots


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a worker: its role, its ranks and their GPUs."""

    role: str
    degree: int
    gpus: tuple[str, ...]


class RankedWorkers(Deployment):
    """Workers of a fleet. One that is started again takes the place of one that has ended."""

    def __init__(self, folder: Path, shape: Shape, slots: Sequence[Slot]) -> None:
        super().__init__(folder, shape)
        self._slots = slots
        self._names: dict[int, str] = {}
        self._next = 0

    def slot_of(self, worker: Worker) -> Slot:
        return next(self._slots[place] for place, name in self._names.items() if name == worker.child.name)

    def start_worker(self, role: str, flags: Sequence[str] = ()) -> Worker:
        running = {worker.child.name for worker in self.workers if worker.child.is_running()}
        self._next = next(
            place
            for place, slot in enumerate(self._slots)
            if slot.role == role and self._names.get(place) not in running
        )
        return super().start_worker(role, (f"--tensor-parallel={self._slots[self._next].degree}", *flags))

    def launch(self, name: str, argv: Sequence[str], extra: Any) -> Child:
        if name.startswith("gateway"):
            return super().launch(name, argv, extra)
        self._names[self._next] = name
        visible = ",".join(self._slots[self._next].gpus)
        return super().launch(name, argv, {**(extra or {}), "CUDA_VISIBLE_DEVICES": visible})


def ranked_workers(folder: Path, fleet: Fleet, gpus: Sequence[str], dtype: str, kv_gib: int) -> RankedWorkers:
    is_gpu = torch.cuda.is_available()
    folder.mkdir(parents=True)
    device = ("--device=cuda", f"--dtype={dtype}") if is_gpu else ("--device=cpu", "--dtype=float32")
    room = kv_gib * GIB if is_gpu else 1 << 26
    shape = Shape(
        prefill=len(fleet.prefill),
        decode=len(fleet.decode),
        model=model_folder({**LLAMA_8B, "max_position_embeddings": 20_480}, folder) if is_gpu else Shape().model,
        served_name=MODEL,
        worker_flags=(*device, f"--kv-cache-bytes={room}", "--max-sequences=32"),
        gateway_flags=("--disaggregation=always",),
    )
    return RankedWorkers(folder / "run", shape, fleet.slots(gpus))


def longest_prompt() -> int:
    return LENGTHS[-1] if torch.cuda.is_available() else TINY_LENGTHS[-1]


# Hand-overs by prompt length ------------------------------------------------------------------------------------------


def measure_handovers(workers: RankedWorkers, fleet: Fleet) -> list[dict[str, Cell]]:
    draw = random.Random(5)
    rows: list[dict[str, Cell]] = []
    for length in LENGTHS if torch.cuda.is_available() else TINY_LENGTHS:
        asks = [completion(MODEL, random_prompt(length, 500, draw), ALONE_TOKENS) for _ in range(ROUNDS + 1)]
        drive(workers.base_url, asks[:1], 1)
        before = {worker.child.name: scrape_series(worker) for worker in workers.workers}
        answers = drive(workers.base_url, asks[1:], 1)
        row: dict[str, Cell] = {"fleet": str(fleet), "part": "handover", "prompt": length}
        seconds = count = 0.0
        for worker in workers.of_role("decode"):
            after = scrape_series(worker)
            seconds += increase(before[worker.child.name], after, "baton_handover_seconds_sum")
            count += increase(before[worker.child.name], after, "baton_handover_seconds_count")
        row["hand-over ms"] = round(1e3 * seconds / count, 2) if count else None
        row["TTFT ms"] = round(1e3 * median(answer.ttft_s for answer in answers), 2)
        row["token 1→2 ms"] = round(1e3 * median(answer.times_s[1] - answer.times_s[0] for answer in answers), 2)
        row["TPOT ms"] = round(1e3 * median(answer.tpot_s for answer in answers), 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


# Kills of ranks under load --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lanes:
    """Clients that ask for the same prompts again and again, and how their answers compare with the known ones."""

    url: str
    asks: Sequence[ClientRequest]
    known: Sequence[str] = ()
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        """Ask until `is_over`, several at a time."""
        numbers = iter(range(1 << 30))
        async with open_session(ANSWER_S) as session:

            async def lane() -> None:
                while not self.is_over:
                    place = next(numbers) % len(self.asks)
                    self.answers.append((place, await send(session, self.url, self.asks[place])))

            await asyncio.gather(*(lane() for _ in range(LANES)))

    def figures(self) -> dict[str, Cell]:
        whole = [(place, answer) for place, answer in self.answers if answer.end is AnswerEnd.WHOLE]
        differing = [(place, answer) for place, answer in whole if answer.texts.get(0) != self.known[place]]
        row: dict[str, Cell] = {"answers": len(self.answers), "lost": len(self.answers) - len(whole)}
        row["equal"], row["other tokens"] = len(whole) - len(differing), len(differing)
        row["differ from character"] = str(
            [(place, _first_difference(self.known[place], answer.texts.get(0, ""))) for place, answer in differing][:8]
        )
        gaps_s = [gap for _, answer in whole for gap in answer.gaps_s]
        row["TTFT max s"] = round(max(answer.ttft_s for _, answer in whole), 2) if whole else None
        row["gap p50 ms"] = round(1e3 * percentile(gaps_s, 50), 2) if gaps_s else None
        row["gap max s"] = round(max(gaps_s), 2) if gaps_s else None
        failures = sorted({f"{answer.failure}: {answer.detail}" for _, answer in self.answers if answer.failure})
        return row | ({"failures": "; ".join(failures)[:600]} if failures else {})


async def measure_kills(workers: RankedWorkers, fleet: Fleet, seconds: float, seed: int) -> list[dict[str, Cell]]:
    """Rows of answers alone, under load, and under load with kills."""
    draw = random.Random(seed)
    longest = max(64, longest_prompt() // 8)
    asks = [
        completion(MODEL, random_prompt(draw.randrange(32, longest), 500, draw), ANSWER_TOKENS) for _ in range(PROMPTS)
    ]
    known = [answer.texts[0] for answer in await asyncio.to_thread(drive, workers.base_url, asks, 1)]
    row: dict[str, Cell] = {"fleet": str(fleet)}
    calm = await _under_load(Lanes(workers.base_url, asks, known), asyncio.sleep(seconds / 4))
    rows = [row | {"part": "no kills"} | calm]
    print(json.dumps(rows[-1]), flush=True)
    kills: list[dict[str, Cell]] = []
    hit = await _under_load(Lanes(workers.base_url, asks, known), _kill_ranks(workers, seconds, draw, kills))
    ended = [float(str(kill["ended s"])) for kill in kills]
    ready = [float(str(kill["ready s"])) for kill in kills]
    hit |= {"kills": len(kills), "ended s, most": max(ended, default=None), "ready s, most": max(ready, default=None)}
    rows.append(row | {"part": "kills"} | hit | {"each": json.dumps(kills)})
    print(json.dumps(rows[-1]), flush=True)
    return rows


async def _under_load(lanes: Lanes, work: Any) -> dict[str, Cell]:
    load = asyncio.create_task(lanes.run())
    try:
        await work
    finally:
        lanes.is_over = True
        await load
    return lanes.figures()


async def _kill_ranks(
    workers: RankedWorkers, seconds: float, draw: random.Random, kills: list[dict[str, Cell]]
) -> None:
    """One rank after the other, of each worker with ranks in turn, until the time is over."""
    until_s = time.monotonic() + seconds
    places = [place for place, worker in enumerate(workers.workers) if workers.slot_of(worker).degree > 1]
    while time.monotonic() < until_s:
        for number, place in ((n, p) for n in (signal.SIGKILL, signal.SIGSTOP) for p in places):
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(draw.uniform(1.0, 3.0))
            kills.append(await asyncio.to_thread(_lose_rank, workers, workers.workers[place], number, draw))


def _lose_rank(workers: RankedWorkers, worker: Worker, number: signal.Signals, draw: random.Random) -> dict[str, Cell]:
    """Kill or stop a rank; the worker has to end, and is started again."""
    children = psutil.Process(worker.child.pid).children(recursive=True)
    ranks = sorted(child.pid for child in children if "rank_main" in " ".join(child.cmdline()))
    rank = draw.randrange(len(ranks))
    began_s = time.monotonic()
    os.kill(ranks[rank], number)
    worker.child.wait(NOTICED_S)
    ended_s = time.monotonic() - began_s
    workers.replace(worker)
    ready_s = time.monotonic() - began_s
    kill: dict[str, Cell] = {"worker": worker.child.name, "signal": number.name, "rank": rank}
    kill |= {"ended s": round(ended_s, 2), "ready s": round(ready_s, 1)}
    print(json.dumps(kill), flush=True)
    return kill


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("handover", "kills"))
    parser.add_argument("--fleets", type=Fleet.parse, nargs="+", default=[Fleet((1,), (2,))], metavar="P,…:D,…")
    parser.add_argument("--gpus", nargs="+", default=["0", "1", "2", "3"], metavar="GPU")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no kill after so long (default %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of `kills` (default float32)")
    parser.add_argument("--kv-gib", type=int, default=8, help="a worker's room for KV (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-s", type=float, default=float("inf"), help="begin no fleet after this time")
    parser.add_argument("--out", type=Path, default=FOLDER / "gpu_ranked_fleets.json")
    options = parser.parse_args()
    rows: list[dict[str, Cell]] = []
    is_gpu = torch.cuda.is_available()
    notes = [f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if is_gpu else "CPU: a trial of the bench"]
    began_s = time.monotonic()
    dtype = options.dtype or ("float32" if options.part == "kills" else "bfloat16")
    with tempfile.TemporaryDirectory() as place:
        for number, fleet in enumerate(options.fleets):
            if time.monotonic() - began_s > options.most_s:
                notes.append(f"not begun, for --most-s {options.most_s:g}: {fleet}")
                continue
            started_s = time.monotonic()
            try:
                workers = ranked_workers(Path(place) / str(number), fleet, options.gpus, dtype, options.kv_gib)
                with workers:
                    notes.append(f"{fleet} in {dtype}: ready after {time.monotonic() - started_s:.0f} s")
                    print(notes[-1], flush=True)
                    if options.part == "handover":
                        rows += measure_handovers(workers, fleet)
                    else:
                        rows += asyncio.run(measure_kills(workers, fleet, options.seconds, options.seed))
            except (AssertionError, RuntimeError, OSError) as error:
                notes.append(f"{fleet} failed: {error}"[:3_000])
                print(notes[-1], flush=True)
            write(options.out, {"notes": notes, "rows": rows})
    publish("gpu_ranked_fleets", this_machine(), notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
