"""Hand-overs between workers of unequal numbers of ranks: every cell, answers, fleets in trouble, simulated worlds.

`make campaign RUN="ranks --cells --answers --fleets 200 --worlds 20000"`. Cells are P and D ranks of {1, 2, 4, 8},
{1, 2, 8, 32} KV heads and elements of {1, 2, 4} bytes, over real sockets. Answers are of models in bfloat16, FP8, 4-bit
integers and MXFP4 experts, with as many ranks and heads: P ranks compute the prompt and D ranks continue it. Fleets
have cuts, kills, cancels and retargets at random instants. Worlds are seeds of the hand-over simulation, over one link
for all legs. Exits with 1 when one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.kv_transfer.builders import key_directory
from baton_testing.ranks.answer_cells import ANSWER_CELLS, AnswerCells
from baton_testing.ranks.cells import CELLS, RANKS, run_cell
from baton_testing.ranks.nodes import Faults
from baton_testing.ranks.troubled_fleet import Shape, Tally, TroubledFleet, Troubles
from baton_testing.ranks.world import World
from baton_wire.keys import KeyDirectory

REPORT_EVERY_S = 60.0
WORLDS = (
    Faults(kv_heads=4, ranks=RANKS, corrupt=0.02, one_link=True),
    Faults(kv_heads=2, ranks=RANKS, one_sided=True, slow_writes=0.3, one_link=True),
)


class Progress:
    """A line now and then, and everything that failed."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._reported_s = time.monotonic()

    def report(self, what: str, done: int) -> None:
        if time.monotonic() - self._reported_s > REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            print(f"{what}: {done:,}, {len(self.failures)} failures", flush=True)

    def failed(self, what: str, error: Exception) -> None:
        self.failures.append(what)
        print(f"{what}: {type(error).__name__}: {error}", flush=True)


async def cells(seed: int, keys: KeyDirectory, progress: Progress) -> int:
    for done, cell in enumerate(CELLS):
        progress.report("cells", done)
        try:
            await run_cell(cell, seed, keys)
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failing cell is a result
            progress.failed(str(cell), error)
    return len(CELLS)


async def answers(folder: Path, keys: KeyDirectory, part: tuple[int, int], progress: Progress) -> tuple[int, float]:
    """Run every n-th cell of answers. Returns their number and the greatest difference of a logit."""
    first, every = part
    chosen, runs, greatest = ANSWER_CELLS[first::every], AnswerCells(folder, keys), 0.0
    for done, cell in enumerate(chosen):
        progress.report("answers", done)
        try:
            greatest = max(greatest, await runs.run(cell))
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failing cell is a result
            progress.failed(str(cell), error)
    return len(chosen), greatest


async def fleets(first: int, count: int, keys: KeyDirectory, progress: Progress) -> Tally:
    total = Tally()
    for seed in range(first, first + count):
        progress.report("fleets", seed - first)
        rng = random.Random(seed)
        prefill, *decode = (rng.choice(RANKS) for _ in range(3))
        shape = Shape(prefill, (decode[0], decode[1]), rng.choice((1, 2, 8)), rng.choice((1, 2, 4)))
        try:
            total.add(await TroubledFleet(seed, shape, Troubles(), keys).run())
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failing seed is a result
            progress.failed(f"fleet {seed} {shape}", error)
    return total


def worlds(first: int, count: int, progress: Progress) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        progress.report("worlds", seed - first)
        world = World(seed, WORLDS[seed % len(WORLDS)])
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failing seed is a result
            progress.failed(f"world {seed}", error)
        total["landed"] += len(world.landed_keys)
        for reasons in world.failures.values():
            total.update(str(reason) for reason in reasons)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", action="store_true")
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--part", default="0/1", help="I/N: of the cells of answers, every N-th from the I-th on")
    parser.add_argument("--fleets", type=int, default=0)
    parser.add_argument("--worlds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    machine, progress = this_machine(), Progress()
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = key_directory(Path(folder) / "keys")
        if arguments.cells:
            rows.append({"what": "cells", "count": asyncio.run(cells(arguments.first, keys, progress))})
        if arguments.answers:
            torch.set_num_threads(1)
            index, every = map(int, arguments.part.split("/"))
            count, greatest = asyncio.run(answers(Path(folder) / "models", keys, (index, every), progress))
            rows.append({"what": "answers", "count": count})
            rows.append({"what": "answers: greatest difference of a logit", "count": greatest})
        if arguments.fleets:
            tally = asyncio.run(fleets(arguments.first, arguments.fleets, keys, progress))
            rows.append({"what": "fleets", "count": arguments.fleets})
            rows += [{"what": f"fleets: {end}", "count": count} for end, count in tally.ends.most_common()]
            rows += [{"what": f"trouble: {kind}", "count": count} for kind, count in tally.troubles.most_common()]
    if arguments.worlds:
        ends = worlds(arguments.first, arguments.worlds, progress)
        rows.append({"what": "worlds", "count": arguments.worlds})
        rows += [{"what": f"worlds: {end}", "count": count} for end, count in ends.most_common()]
    rows.append({"what": "failures", "count": len(progress.failures)})
    notes = ["Hand-overs between workers of unequal numbers of ranks."]
    publish("ranks", machine, notes, ("what", "count"), rows)
    return 1 if progress.failures else 0


if __name__ == "__main__":
    sys.exit(main())
