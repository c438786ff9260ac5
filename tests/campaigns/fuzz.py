"""Campaigns against the hand-over in one process: `make campaign RUN="fuzz CAMPAIGN"`.

`corruption` spoils the data of hand-overs and looks for wrong bytes that were admitted; `wire` decodes frames that no
honest peer sends; `links` alters frames on their way, and signs bad ones; `machines` gives both machines any event at
any time; `forgeries` tries forged and replayed keys, grants and seals; `cancels` cancels after every event of a
hand-over; `transfers` hands over again and again over one link of real sockets. Memory is watched in all campaigns.
Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping

import psutil
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.kv_transfer.defects import Defect, Tally
from baton_testing.kv_transfer.machine_fuzz import DecodeFuzz, PrefillFuzz
from baton_testing.kv_transfer.spoilt_pair import SIDES, CancelledPair, SpoiltPair
from baton_testing.wire.forgeries import Forgeries
from baton_testing.wire.fuzz import HandshakeFuzz, WireFuzz
from baton_testing.wire.link_fuzz import LinkFuzz
from campaigns.long_link import transfers

Rows = list[dict[str, Cell]]
REPORT_EVERY_S = 20.0
FUZZ_STEPS = 120
POINTS = 24
TRACED_STEPS = 20_000
MAX_PEAK_BYTES = 4 << 20
"""Most that one slice of steps may allocate beyond what it began with."""
MAX_GROWTH_BYTES = 32 << 20


class Progress:
    """A line now and then, and the process's memory since the first."""

    def __init__(self, what: str, count: int) -> None:
        self._what, self._count = what, count
        self._reported_s = self._began_s = time.monotonic()
        self._process = psutil.Process()
        self._first_bytes = 0

    def at(self, done: int, note: str = "") -> None:
        if not self._first_bytes and done >= self._count // 10:
            self._first_bytes = self._process.memory_info().rss  # after the warm-up
        if time.monotonic() - self._reported_s > REPORT_EVERY_S or done == self._count:
            self._reported_s = time.monotonic()
            print(f"{self._what}: {done:,} of {self._count:,} {note}", flush=True)

    def rows(self) -> Rows:
        growth = self._process.memory_info().rss - self._first_bytes
        return [
            {"what": "seconds", "count": round(time.monotonic() - self._began_s)},
            {"what": "resident memory grown after the first tenth, KiB", "count": growth >> 10},
        ]


def _count_rows(counts: Mapping[str, int]) -> Rows:
    return [{"what": what, "count": count} for what, count in counts.items()]


def corruption(count: int, seed: int) -> tuple[Rows, bool]:
    """At least `count` injected defects, half with a one-sided transport."""
    progress, tally = Progress("corruption", count), Tally()
    defects = [defect for defect in Defect if defect is not Defect.NONE]
    pairs = [SpoiltPair(seed + side, one_sided=bool(side)) for side in range(2)]
    number = 0
    while (done := sum(tally.injected.values())) < count:
        pair = pairs[number % 2]
        number += 1
        tally.add(pair.run(Defect.NONE if pair.random.random() < 0.05 else pair.random.choice(defects)))
        progress.at(done, f"injected, {tally.landed_wrong} landed wrong")
    progress.at(count)
    rows: Rows = [
        {"what": "hand-overs", "count": tally.handovers},
        {"what": "injected defects", "count": sum(tally.injected.values())},
        {"what": "landed with wrong bytes", "count": tally.landed_wrong},
        {"what": "landed with the right bytes all the same", "count": tally.landed_spoilt},
        {"what": "without a defect, not landed", "count": tally.clean_lost},
        *_count_rows({f"end of {kind}": n for kind, n in sorted(tally.ends.items())}),
        *progress.rows(),
    ]
    return rows, tally.landed_wrong == tally.landed_spoilt == tally.clean_lost == 0


def wire(count: int, seed: int) -> tuple[Rows, bool]:
    fuzz, progress = WireFuzz(seed), Progress("wire", count)
    taken, peak = 0, 0
    for done in range(0, count, TRACED_STEPS):
        step, peak = _trace(lambda: sum(fuzz.step() for _ in range(TRACED_STEPS)), done, peak)
        taken += step
        progress.at(min(count, done + TRACED_STEPS), f"frames, {taken:,} were valid messages")
    rows: Rows = [
        {"what": "frames decoded", "count": count},
        {"what": "of them valid messages", "count": taken},
        {"what": "frames in the corpus", "count": len(fuzz.corpus)},
        {"what": "longest error text, characters", "count": fuzz.longest_error},
        {"what": "highest allocation in a traced slice, KiB", "count": peak >> 10},
        *progress.rows(),
    ]
    return rows, peak < MAX_PEAK_BYTES and fuzz.longest_error <= 300


def links(count: int, seed: int) -> tuple[Rows, bool]:
    """At least `count` frames; anything but a typed end, or another message than was sent, raises."""
    fuzz, progress = LinkFuzz(seed), Progress("links", count)
    done = 0
    while done < count:
        done += fuzz.run(min(5_000, count - done))
        progress.at(min(done, count), "frames")
    rows: Rows = [
        {"what": "frames sent", "count": done},
        *_count_rows({f"links that ended with {end}": n for end, n in sorted(fuzz.ends.items())}),
        *progress.rows(),
    ]
    return rows, True


def _trace(work: Callable[[], int], done: int, peak: int) -> tuple[int, int]:
    """One slice in ten is run under tracemalloc, which is slow; its highest allocation beyond the start."""
    if done // TRACED_STEPS % 10:
        return work(), peak
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        return result, max(peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def machines(count: int, seed: int) -> tuple[Rows, bool]:
    progress = Progress("machines", count)
    ended: Counter[str] = Counter()
    done = number = 0
    while done < count:
        for kind in (PrefillFuzz, DecodeFuzz):
            world = kind(seed + number)
            for _ in range(FUZZ_STEPS):
                world.step()
            world.finish()
            ended.update({f"{kind.__name__}: {end}": n for end, n in world.machine.stats().ended.items()})
            done += FUZZ_STEPS
        number += 1
        progress.at(done, "steps")
    rows: Rows = [
        {"what": "steps", "count": done},
        {"what": "machines, each with empty books at its end", "count": 2 * number},
        *_count_rows(dict(sorted(ended.items()))),
        *progress.rows(),
    ]
    growth = rows[-1]["count"]
    return rows, isinstance(growth, int) and growth << 10 < MAX_GROWTH_BYTES


def forgeries(count: int, seed: int) -> tuple[Rows, bool]:
    """`count` of each: proofs of a key, grants, seals."""
    progress = Progress("forgeries", 3 * count)
    handshakes, pairs = HandshakeFuzz(seed), Forgeries(seed)
    proofs = sum(handshakes.step() for _ in range(count))
    progress.at(count, f"proofs, {proofs} accepted")
    for done in range(count):
        pairs.forge_grant()
        pairs.forge_seal()
        progress.at(count + 2 * done + 2, "grants and seals")
    rows: Rows = [
        {"what": "forged or replayed proofs", "count": count},
        {"what": "of them accepted", "count": proofs},
        *_count_rows(pairs.counts),
        *progress.rows(),
    ]
    return rows, proofs == pairs.counts["grants acted on"] == pairs.counts["seals landed"] == 0


def cancels(count: int, seed: int) -> tuple[Rows, bool]:
    """`count` cancels after every event of a hand-over's life, at each side and at both, with either transport."""
    pairs = [CancelledPair(seed + side, one_sided=bool(side)) for side in range(2)]
    progress = Progress("cancels", 2 * len(SIDES) * POINTS * count)
    landed: Counter[int] = Counter()
    done = reached = 0
    for point in range(POINTS):
        for number in range(2 * len(SIDES) * count):
            pair = pairs[number % 2]
            landed[point] += pair.cancel_at(point, SIDES[number // 2 % len(SIDES)]).is_landed
            reached = max(reached, pair.events)
            progress.at(done := done + 1)
    rows: Rows = [
        {"what": "points", "count": POINTS},
        {"what": "cancels at each point, side and transport", "count": count},
        {"what": "cancels, each with empty books at both ends", "count": done},
        {"what": "events of the longest hand-over", "count": reached},
        *_count_rows({f"landed although cancelled after event {n}": landed[n] for n in sorted(landed)}),
    ]
    return rows, landed[0] == 0


CAMPAIGNS: dict[str, tuple[Callable[[int, int], tuple[Rows, bool]], int]] = {
    "cancels": (cancels, 200),
    "corruption": (corruption, 100_000),
    "links": (links, 50_000),
    "wire": (wire, 1_000_000),
    "machines": (machines, 1_000_000),
    "forgeries": (forgeries, 10_000),
    "transfers": (transfers, 100_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=sorted(CAMPAIGNS))
    parser.add_argument("--count", type=int, help="default: the bar of the campaign")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    campaign, bar = CAMPAIGNS[arguments.campaign]
    machine = this_machine()
    rows, is_good = campaign(arguments.count or bar, arguments.seed)
    notes = [f"Seed {arguments.seed}. {'All bars held.' if is_good else 'A BAR WAS MISSED.'}"]
    publish(f"fuzz_{arguments.campaign}", machine, notes, ("what", "count"), rows)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
