"""Fault campaigns against real processes: `make campaign RUN="faults CAMPAIGN"`.

`kill` SIGKILLs workers and gateway processes of `baton up` under load; `pause` stops and wakes them; `cut` drops
packets between processes that live in network namespaces (needs root); `cancel` hangs up at many points of a request's
life. In `kept` workers are killed, and prefill workers may decode, too. In `flipping` workers are killed while some
change their roles. In `ranks` workers have two ranks each, one of which is killed, stopped, or slowed by 100 ms a step.
In `stages` prefill workers have two stages instead. In `structured` workers are killed, stopped and drained in turn,
answers follow schemas, expressions and tools, and the KV pools are so small that sequences are preempted. Every whole
text is known: a lost, repeated or different token is counted. Rounds are appended to a journal, so that a campaign can
be run in slices; the summary in `bench/results` covers the whole journal. Exits with 1 when a round has a problem.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.machine import this_machine
from bench.results import publish

from campaigns.faults import cancel as faults_cancel
from campaigns.faults import rounds as faults_rounds
from campaigns.faults.fleet import Fleet, FlippingFleet, UpFleet, keeping_fleet
from campaigns.faults.load import Ask, Load, asks
from campaigns.faults.lost_ranks import LoseRank, SlowRank, ranked_fleet, staged_fleet
from campaigns.faults.network import Cut, NetworkFleet, inside
from campaigns.faults.rounds import Deck, Harm, Round
from campaigns.faults.structured import structured_asks, structured_fleet

HARMS = {"kill": faults_rounds.Kill, "pause": faults_rounds.Pause, "cut": Cut}


async def campaign(
    fleet: Fleet, harms: Sequence[Harm], known: Sequence[Ask], arguments: argparse.Namespace, journal: Path
) -> bool:
    """Play `count` rounds, or as many as begin in time, each with one of `harms`; True if all went well."""
    until_s = time.monotonic() + arguments.minutes * 60
    draw, count = random.Random(arguments.seed), arguments.count
    load = Load(fleet.host, fleet.port, known, arguments.lanes, draw)
    deck = Deck(draw)
    is_good = True
    try:
        for number in range(count):
            if time.monotonic() > until_s:
                break
            round_ = await faults_rounds.play(fleet, load, draw.choice(harms), deck, draw)
            faults_rounds.append(journal, round_)
            _tell(number + 1, count, round_)
            is_good &= not round_.problems
    finally:
        await load.stop()
    return is_good


def _tell(number: int, count: int, round_: Round) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {number}/{count} {round_.fault} {round_.role}: {round_.verdicts} "
        f"held {round_.held}, {round_.counts}, own {round_.excepted}, noticed {round_.noticed_s}, "
        f"baseline {round_.baseline_s}, fleet whole after {round_.restarted_s:.1f} s",
        flush=True,
    )
    for problem in round_.problems:
        print(f"    {problem}", flush=True)


async def run(name: str, arguments: argparse.Namespace, folder: Path, journal: Path) -> bool:
    draw = random.Random(arguments.seed + 1)
    if name == "structured":
        harms: list[Harm] = [faults_rounds.KillWorker(draw)] * 2 + [
            faults_rounds.PauseWorker(draw),
            faults_rounds.Drain(),
        ]
        async with structured_fleet(folder) as small:
            return await campaign(small, harms, await structured_asks(small), arguments, journal)
    if name == "kept":
        async with keeping_fleet(folder) as keeping:
            return await campaign(keeping, [faults_rounds.KillWorker(draw)], asks(), arguments, journal)
    if name in ("ranks", "stages"):
        async with (ranked_fleet if name == "ranks" else staged_fleet)(folder) as ranked:
            losses: list[Harm] = [LoseRank(draw)] * 4 + [SlowRank(draw)]
            return await campaign(ranked, losses, asks(), arguments, journal)
    if name == "flipping":
        async with FlippingFleet(folder, draw) as flipping:
            harm = faults_rounds.KillWhileFlipping(draw, flipping.flip)
            is_good = await campaign(flipping, [harm], asks(), arguments, journal)
            took = sorted(flipping.took_s())
            if took:
                print(f"{len(took)} flips, median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s")
            return is_good
    async with NetworkFleet(folder) if name == "cut" else UpFleet(folder) as fleet:
        return await campaign(fleet, [HARMS[name](draw)], asks(), arguments, journal)


async def run_cancels(arguments: argparse.Namespace, folder: Path, journal: Path) -> None:
    async with UpFleet(folder, per_role=1) as fleet:
        until_s = time.monotonic() + arguments.minutes * 60
        await faults_cancel.points(fleet, arguments.count, journal, until_s)
        if time.monotonic() < until_s:
            await faults_cancel.storm(fleet, 10 * arguments.count, journal)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "campaign", choices=sorted((*HARMS, "cancel", "flipping", "kept", "ranks", "stages", "structured"))
    )
    parser.add_argument("--count", type=int, default=200, help="faults (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no round after so long")
    parser.add_argument("--lanes", type=int, default=6, help="requests at a time (default %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--journal", type=Path, help="of rounds; appended to (default: a new one)")
    parser.add_argument("--keep", type=Path, help="folder for the logs of the processes (default: thrown away)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.campaign == "cut" and not arguments.inside:
        return inside(("-m", "campaigns.faults", *sys.argv[1:], "--inside"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="baton-faults-") as temporary:
        folder = arguments.keep or Path(temporary)
        journal = arguments.journal or folder / "journal.jsonl"
        if arguments.campaign == "cancel":
            asyncio.run(run_cancels(arguments, folder, journal))
            rows = faults_cancel.load_journal(journal)
            notes = [f"{arguments.count} clients hang up at each point; then {10 * arguments.count} in one tick."]
            publish("faults_cancel", machine, notes, ("point", "cancels", "blocks free after s", "alive"), rows)
            return 0 if all(map(faults_cancel.is_good, rows)) else 1
        is_good = asyncio.run(run(arguments.campaign, arguments, folder, journal))
        rounds = faults_rounds.load_journal(journal)
    notes = [
        f"{len(rounds)} faults of the campaign `{arguments.campaign}` under load, {arguments.lanes} requests at a time."
    ]
    publish(f"faults_{arguments.campaign}", machine, notes, faults_rounds.COLUMNS, faults_rounds.summary(rounds))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
