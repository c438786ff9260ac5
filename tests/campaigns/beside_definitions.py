"""The cost of bad definitions to other tenants: `make campaign RUN=beside_definitions`.

Short streams of innocents on null workers, with and without ten kinds of bad schemas, patterns and tools at the same
time: some a second, or one after the other without a pause. The ways take turns, so that a busy machine hits all alike.
In each round they are alone twice: how far both are apart is what the machine itself does to these figures. Exits with
1 where the 99th percentile of a first token or of a gap is more than 5 % above that without (some a second).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, percentile, publish

from baton_testing.gateway.hostile_shapes import bad_shapes
from baton_testing.gateway.null_service import MODEL, STEP_MS, Target, target
from baton_testing.gateway.raw_client import exchange, posted
from campaigns.hostile import STREAMS, longest

TOKENS = 50
MOST = 1.05
ALONE, PACED, AGAIN, UNPACED = "alone", "paced", "alone again", "without a pause"
SETTLING_S = 1.0


@dataclass(slots=True)
class Seen:
    """By innocents, in seconds."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    refused: int = 0
    lag_s: float = 0.0
    """Bound of the longest lag of the gateway's loop."""

    def row(self, way: str) -> dict[str, Cell]:
        row: dict[str, Cell] = {"beside": way, "refused": self.refused, "streams": len(self.first)}
        for name, values in (("TTFT", self.first), ("gap", self.gaps)):
            for percent in (50, 99):
                row[f"{name} p{percent} ms"] = round(1e3 * percentile(values, percent), 2)
        return row | {"lag ms, at most": round(1e3 * self.lag_s)}


async def innocent(at: Target, seen: Seen) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": TOKENS, "stream": True}).encode()
    while True:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        try:
            writer.write(posted("/v1/completions", body))
            last = 0.0
            while read := await reader.read(65_536):
                now = time.perf_counter()
                if last:
                    seen.gaps.append(now - last)
                elif b"data:" in read:
                    seen.first.append(now - began)
                last = now if last or b"data:" in read else last
        finally:
            writer.close()


async def attack(at: Target, seen: Seen, pause_s: float) -> None:
    bodies = [
        posted("/v1/chat/completions", json.dumps(chat | fields).encode())
        for chat in [{"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}]
        for number in range(20)
        for _, fields in bad_shapes(number)
    ]
    while True:
        for body in bodies:
            status, answer = await exchange(at.port, body)
            assert status == 400, answer
            seen.refused += 1
            await asyncio.sleep(pause_s)


@contextlib.asynccontextmanager
async def run_beside(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    """Run endless tasks while the context lasts. Raises what one task raised."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError) and isinstance(error, BaseException):
            raise error


async def measure(at: Target, way: str, pause_s: float, seconds: float, into: Seen) -> None:
    seen = Seen()
    tasks = [asyncio.create_task(innocent(at, seen)) for _ in range(STREAMS)]
    if way in (PACED, UNPACED):
        tasks.append(asyncio.create_task(attack(at, seen, pause_s if way == PACED else 0.0)))
    async with run_beside(*tasks):
        await asyncio.sleep(SETTLING_S)
        seen.first.clear()
        seen.gaps.clear()
        seen.refused = 0
        lags = await asyncio.to_thread(at.lags)
        await asyncio.sleep(seconds)
        into.first += seen.first
        into.gaps += seen.gaps
        into.refused += seen.refused
        into.lag_s = max(into.lag_s, longest(lags, await asyncio.to_thread(at.lags)))


async def campaign(at: Target, options: argparse.Namespace) -> dict[str, Seen]:
    seen_by_way = {way: Seen() for way in (ALONE, PACED, AGAIN, UNPACED)}
    for _ in range(options.rounds):
        for way, seen in seen_by_way.items():
            await measure(at, way, 1.0 / options.rate, options.seconds, seen)
    return seen_by_way


def _format_ratios(ratios: dict[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=10.0, help="bad definitions a second (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each way and round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder, target(Path(folder), 2_048) as at:
        seen_by_way = asyncio.run(campaign(at, options))
    rows = [seen.row(way) for way, seen in seen_by_way.items()]
    alone, paced, again, _ = rows
    ratios, noise = (
        {name: float(row[name] or 0) / float(alone[name] or 1) for name in ("TTFT p99 ms", "gap p99 ms")}
        for row in (paced, again)
    )
    notes = [
        f"{STREAMS} innocent streams of {TOKENS} tokens, {STEP_MS:.0f} ms each; paced: {options.rate:g} a second.",
        f"Paced to alone: {_format_ratios(ratios)}. Alone again to alone: {_format_ratios(noise)}.",
    ]
    publish("beside_definitions", machine, notes, tuple(rows[0]), rows)
    return 0 if max(ratios.values()) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
