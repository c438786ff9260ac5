"""Single bits flipped on every internal link: `make campaign RUN="flips --count 1000"`.

A service of real processes, all links through proxies. Each direction of each link has `count` bits flipped while
clients ask what has known answers. No client may get another text: right, a beginning of it and an error, or an error.
A flip on a control link must end that link within 5 s, but for unread header lines of an HTTP upgrade: after those the
handshake and signed frames go both ways. Exits with 1 when a bar is missed.

Several runs side by side make one: each with its own `--seed` and `--write FILE`, then `--merge FILE …`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import astuple
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Shape
from baton_testing.processes.tampered_deployment import LINKS, TamperedDeployment
from baton_testing.processes.tampering_proxy import Flip, TamperingProxy, Way
from campaigns.faults.load import Ask, Judged, question_of, send_and_judge

MAX_TOKENS = 48
NOTICED_S = 5.0
DATA = "prefill-decode data"
"""Has no deadline. KV bytes have no MAC: their checksums end the hand-over instead."""
SLOW = "gateway-operator"
"""A link with some frames a second: next to others it has as many flips as fit into their time."""


def asks() -> list[Ask]:
    """Streamed and whole, short enough to end between two flips."""
    choices = []
    for question in tiny_llama.LONG_ANSWERS:
        greedy = tiny_llama.greedy(tiny_llama.chat_ids(question), MAX_TOKENS)
        if greedy.safe_tokens() == len(greedy.ids):
            text = tiny_llama.text_of(greedy.ids)
            for stream in (True, True, False):
                request = question_of(question, stream=stream, max_tokens=MAX_TOKENS)
                choices.append(Ask("streamed" if stream else "whole", request, (text,)))
    return choices


class Tally:
    """Counts of requests and flips by their outcome."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.flips: dict[Way, list[Flip]] = {}
        self.problems: list[str] = []
        self.altered = 0
        """Frames that the metrics count."""

    def count(self, outcome: Judged) -> None:
        verdict = outcome.verdict
        if verdict in ("failed", "broken"):
            begins = (outcome.ask.expected[index].startswith(text) for index, text in outcome.answer.texts.items())
            verdict = verdict if all(begins) else "wrong"
        self.requests[verdict] += 1
        if verdict == "wrong":
            self.problems.append(f"{outcome.ask.request.body}: {outcome.detail} {outcome.answer.texts}")
            print(self.problems[-1], flush=True)

    def as_json(self) -> str:
        ends = [
            (*astuple(way), [(flip.closed_after_s, flip.had_no_effect) for flip in flips])
            for way, flips in self.flips.items()
        ]
        return json.dumps([self.requests, ends, self.problems, self.altered])

    def add(self, text: str) -> None:
        """Add the counts that `as_json` of another run gave."""
        requests, ways, problems, altered = json.loads(text)
        self.requests.update(requests)
        for link, is_back, ends in ways:
            way = Way(link, is_back)
            self.flips.setdefault(way, []).extend(
                Flip(way, 0.0, closed_after_s=after_s, had_no_effect=none) for after_s, none in ends
            )
        self.problems += problems
        self.altered += altered

    @property
    def late(self) -> int:
        return sum(not _in_time(flip) for way, flips in self.flips.items() if way.link != DATA for flip in flips)

    def rows(self) -> list[dict[str, Cell]]:
        rows: list[dict[str, Cell]] = []
        for way, flips in sorted(self.flips.items(), key=str):
            lasted = sorted(flip.closed_after_s for flip in flips if flip.closed_after_s is not None)
            rows.append(
                {
                    "way": str(way),
                    "flips": len(flips),
                    "ended the link": len(lasted),
                    "had no effect": sum(flip.had_no_effect for flip in flips),
                    "after s, median": round(lasted[len(lasted) // 2], 3) if lasted else None,
                    "after s, most": round(lasted[-1], 2) if lasted else None,
                    "later than 5 s or not": sum(not _in_time(flip) for flip in flips),
                }
            )
        return rows


def _in_time(flip: Flip) -> bool:
    return flip.had_no_effect or (flip.closed_after_s is not None and flip.closed_after_s < NOTICED_S)


async def tamper(
    way: Way, proxy: TamperingProxy, count: int, pause_s: float, tally: Tally, draw: random.Random
) -> None:
    for _ in range(count):
        await asyncio.sleep(draw.uniform(0.3, 1.0) * pause_s)
        flip = await proxy.flip(way)
        tally.flips.setdefault(way, []).append(flip)
        try:
            async with asyncio.timeout(NOTICED_S + 0.5 if way.link != DATA else 0.2):
                await flip.judged.wait()
        except TimeoutError:
            if way.link != DATA:
                print(f"{way}: a link is still up {NOTICED_S} s after a flip", flush=True)


async def ask_on(host: str, port: int, choices: list[Ask], tally: Tally, draw: random.Random) -> None:
    while True:
        outcome = await send_and_judge(host, port, draw.choice(choices))
        tally.count(outcome)
        await asyncio.sleep(draw.uniform(0.0, 0.1))


async def campaign(arguments: argparse.Namespace, folder: Path, choices: list[Ask]) -> Tally:
    draw, tally, until_s = random.Random(arguments.seed), Tally(), time.monotonic() + arguments.minutes * 60
    shape = Shape(arguments.each, arguments.each)
    async with TamperedDeployment(folder, draw, shape) as tampered:
        port = tampered.service.port
        clients = [asyncio.create_task(ask_on("127.0.0.1", port, choices, tally, draw)) for _ in range(arguments.lanes)]
        tasks = {
            asyncio.create_task(
                tamper(way, proxy, -(-arguments.count // len(proxies)), arguments.pause, tally, draw)
            ): way
            for way, proxies in tampered.ways.items()
            for proxy in proxies
            if not arguments.links or way.link in arguments.links
            if not arguments.direction or way.is_back == (arguments.direction == "back")
        }
        slow = {way for way in tasks.values() if way.link == SLOW and len(set(tasks.values())) > 2}
        while any(not task.done() and way not in slow for task, way in tasks.items()) and time.monotonic() < until_s:
            await asyncio.wait(tasks, timeout=min(20.0, max(0.0, until_s - time.monotonic())))
            counts = {str(way): len(flips) for way, flips in tally.flips.items()}
            print(f"{time.strftime('%H:%M:%S')} {dict(tally.requests)} {counts}", flush=True)
        for task in (*tasks, *clients):
            task.cancel()
        await asyncio.gather(*tasks, *clients, return_exceptions=True)
        await asyncio.sleep(3.0)
        for _ in range(5):  # nothing is broken for good
            outcome = await send_and_judge("127.0.0.1", port, draw.choice(choices))
            if outcome.verdict != "exact":
                tally.problems.append(f"after the last flip: {outcome.verdict} {outcome.detail}")
        tally.altered = await asyncio.to_thread(tampered.altered_frames)
        return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="flips of each link and direction")
    parser.add_argument("--links", nargs="*", choices=LINKS, help="flip on these alone (default: all)")
    parser.add_argument("--direction", choices=("forth", "back"), help="from who dialled, or to it (default: both)")
    parser.add_argument("--each", type=int, default=2, help="workers of each role (default %(default)s)")
    parser.add_argument("--lanes", type=int, default=6, help="requests at a time (default %(default)s)")
    parser.add_argument("--pause", type=float, default=1.0, help="most seconds between two flips of a connection")
    parser.add_argument("--minutes", type=float, default=60.0, help="flip no longer than so long after the start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the logs of the processes (default: thrown away)")
    parser.add_argument("--write", type=Path, help="write what was counted here, and publish nothing")
    parser.add_argument("--merge", type=Path, nargs="+", help="publish what these files hold, and flip nothing")
    arguments = parser.parse_args()
    machine = this_machine()
    if arguments.merge:
        tally, how = Tally(), f"{len(arguments.merge)} runs side by side."
        for file in arguments.merge:
            tally.add(file.read_text())
    else:
        how = (
            f"Seed {arguments.seed}; {arguments.each} prefill and decode workers, {arguments.lanes} requests at a time."
        )
        with tempfile.TemporaryDirectory(prefix="baton-flips-") as temporary:
            tally = asyncio.run(campaign(arguments, arguments.keep or Path(temporary), asks()))
    is_good = not tally.problems and not tally.late
    if arguments.write:
        arguments.write.write_text(tally.as_json())
    else:
        notes = [
            how,
            f"Requests: {dict(sorted(tally.requests.items()))}. Frames counted as altered: {tally.altered}.",
            "All bars held." if is_good else f"A BAR WAS MISSED: {len(tally.problems)} problems, {tally.late} late.",
        ]
        rows = tally.rows()
        publish("flips", machine, notes, tuple(rows[0]), rows)
    print("\n".join(tally.problems))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
