"""The cost of the hand-over to a client: `python -m bench handover`.

The same prompts, one after another and in turn, to one prefill and one decode worker and to one worker that does both.
Cost in TTFT: time to the first token apart less the same time together. Cost in the gap: time from token 1 to token 2
apart less the usual time between tokens there, and less the same gap together. The prefilling worker has a core for
itself in both cases; decode worker, gateway and client share the other. Fresh random prompts: nothing is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from bench.engine.subjects import Subject, random_100m, tiny
from bench.machine import this_machine
from bench.results import Cell, figure, publish, spread
from bench.serving.load import random_prompt

from baton_local.client import completion, open_session, send
from baton_testing.processes.child_process import Child
from baton_testing.processes.deployment import Deployment, Shape, Worker

MODEL = "bench"
PROMPTS = (128, 256, 512, 1_024, 2_048, 4_000)
OUTPUT_TOKENS = 8
ROUNDS = {128: 16, 256: 12, 512: 10, 1_024: 8, 2_048: 5, 4_000: 4}
PREFILL_CORE, OTHER_CORE = 0, 1
EARLY = re.compile(r'^baton_kv_bytes_total\{direction="(\w+)",role="prefill"\} ([0-9.e+]+)$', re.MULTILINE)
COLUMNS = (
    *("verify", "prompt", "KV MB", "TTFT together ms", "TTFT apart ms", "TTFT cost ms", "TTFT cost %"),
    *(
        "gap 1-2 apart ms",
        "later gaps apart ms",
        "gap cost ms",
        "gap 1-2 together ms",
        "against together ms",
        "sent at prefill's end %",
        "P cpu ms",
        "alone cpu ms",
    ),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One request, as its client and the prefilling worker saw it."""

    arrivals_s: tuple[float, ...]
    """When each token arrived, from when the request was sent."""
    prefiller_cpu_s: float
    bytes_sent: float
    bytes_early: float
    """Bytes of `bytes_sent` that were at the decode worker when the prefill ended."""

    @property
    def ttft_s(self) -> float:
        return self.arrivals_s[0]

    @property
    def first_gap_s(self) -> float:
        return self.arrivals_s[1] - self.arrivals_s[0]

    @property
    def later_gap_s(self) -> float:
        return statistics.median(b - a for a, b in zip(self.arrivals_s[1:], self.arrivals_s[2:], strict=False))


class Service(Deployment):
    """A gateway and its workers, each on its core; the first role is the one that prefills."""

    def __init__(self, folder: Path, roles: Sequence[str], subject: Subject, verify: str, context_tokens: int) -> None:
        flags = ("--dtype=float32", f"--max-context-tokens={context_tokens}", f"--kv-cache-bytes={512 << 20}")
        self._prefills = roles[0]
        super().__init__(
            folder,
            Shape(
                *(roles.count("prefill"), roles.count("decode")),
                model=subject.folder,
                served_name=MODEL,
                worker_flags=(*flags, f"--verify={verify}"),
                gateway_flags=(f"--disaggregation={'always' if 'prefill' in roles else 'never'}",),
            ),
        )

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        """Pinned before it has threads: they all get what the process has."""
        child = super().launch(name, argv, extra)
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(child.pid, {PREFILL_CORE if name.startswith(self._prefills) else OTHER_CORE})
        return child

    @property
    def prefiller(self) -> Worker:
        return self.of_role(self._prefills)[0]


def read_counters(service: Service) -> dict[str, float]:
    return {name: float(value) for name, value in EARLY.findall(service.prefiller.metrics())}


async def ask(session: aiohttp.ClientSession, service: Service, prompt: Sequence[int]) -> Timing:
    before_s, before = service.prefiller.child.cpu_s(), read_counters(service)
    answer = (await send(session, service.base_url, completion(MODEL, prompt, OUTPUT_TOKENS))).checked()
    if len(answer.times_s) < 3:
        raise RuntimeError(f"{len(answer.times_s)} pieces of text came for {OUTPUT_TOKENS} tokens")
    await asyncio.sleep(0.15)  # the worker's counters are looked at every 50 ms
    after = read_counters(service)
    spent_s = service.prefiller.child.cpu_s() - before_s
    sent, early = (after.get(name, 0.0) - before.get(name, 0.0) for name in ("sent", "early"))
    return Timing(tuple(at_s - answer.sent_s for at_s in answer.times_s), spent_s, sent, early)


async def compare(
    apart: Service, together: Service, prompts: Sequence[int], vocab_size: int, rounds: int | None, draw: random.Random
) -> dict[int, list[tuple[Timing, Timing]]]:
    """By prompt length: (apart, together) of each round, in an order that alternates; the first round warms up."""
    timings: dict[int, list[tuple[Timing, Timing]]] = {}
    async with open_session(300) as session:
        for length in prompts:
            pairs = timings.setdefault(length, [])
            for number in range((rounds or ROUNDS.get(length, 8)) + 1):
                prompt = random_prompt(length, vocab_size, draw)
                if number % 2:
                    one, other = await ask(session, apart, prompt), await ask(session, together, prompt)
                else:
                    other = await ask(session, together, prompt)
                    one = await ask(session, apart, prompt)
                if number:
                    pairs.append((one, other))
            print(f"{length} tokens: {', '.join(_format_round(*pair) for pair in pairs)}", flush=True)
    return timings


def _format_round(apart: Timing, together: Timing) -> str:
    """One round in milliseconds, apart/together: TTFT, processor time of the prefilling worker, gap between tokens 1
    and 2."""
    ways = [(way.ttft_s, way.prefiller_cpu_s, way.first_gap_s) for way in (apart, together)]
    return " ".join(f"{1e3 * one:.0f}/{1e3 * other:.0f}" for one, other in zip(*ways, strict=True))


def row(verify: str, length: int, pairs: Sequence[tuple[Timing, Timing]]) -> dict[str, Cell]:
    apart, together = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    cost = [1e3 * (one.ttft_s - other.ttft_s) for one, other in pairs]
    base_ms = statistics.median(1e3 * timing.ttft_s for timing in together)
    sent = statistics.median(timing.bytes_sent for timing in apart)
    early = [100 * timing.bytes_early / timing.bytes_sent for timing in apart if timing.bytes_sent]
    return {
        "verify": verify,
        "prompt": length,
        "KV MB": figure(sent / 1e6),
        "TTFT together ms": str(spread([1e3 * timing.ttft_s for timing in together])),
        "TTFT apart ms": str(spread([1e3 * timing.ttft_s for timing in apart])),
        "TTFT cost ms": str(spread(cost)),
        "TTFT cost %": figure(100 * statistics.median(cost) / base_ms),
        "gap 1-2 apart ms": str(spread([1e3 * timing.first_gap_s for timing in apart])),
        "later gaps apart ms": str(spread([1e3 * timing.later_gap_s for timing in apart])),
        "gap cost ms": str(spread([1e3 * (timing.first_gap_s - timing.later_gap_s) for timing in apart])),
        "gap 1-2 together ms": str(spread([1e3 * timing.first_gap_s for timing in together])),
        "against together ms": str(spread([1e3 * (one.first_gap_s - other.first_gap_s) for one, other in pairs])),
        "sent at prefill's end %": str(spread(early)) if early else None,
        "P cpu ms": str(spread([1e3 * timing.prefiller_cpu_s for timing in apart])),
        "alone cpu ms": str(spread([1e3 * timing.prefiller_cpu_s for timing in together])),
    }


def run(model: str, prompts: Sequence[int], modes: Sequence[str], rounds: int | None, name: str) -> None:
    machine = this_machine()
    subject = {"tiny": tiny, "100m": random_100m}[model]()
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {OTHER_CORE})
    context = max(prompts) + 96
    rows: list[dict[str, Cell]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(Path(folder) / "together", ("decode",), subject, "full", context) as together,
    ):
        for verify in modes:
            with Service(Path(folder) / verify, ("prefill", "decode"), subject, verify, context) as apart:
                draw = random.Random(1)
                timings = asyncio.run(compare(apart, together, prompts, subject.vocab_size, rounds, draw))
                rows += [row(verify, length, pairs) for length, pairs in timings.items()]
    notes = [
        f"{subject.name}; median (least–greatest) of the rounds after one warm-up, {OUTPUT_TOKENS} tokens out, one "
        f"client; load {os.getloadavg()[0]:.1f} at the end. The prefilling worker on core {PREFILL_CORE}, everything "
        f"else on core {OTHER_CORE}; one torch thread each."
    ]
    publish(name, machine, notes, COLUMNS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "100m"), default="100m")
    parser.add_argument("--prompts", nargs="+", type=int, default=PROMPTS)
    parser.add_argument("--verify", nargs="+", choices=("full", "stamps"), default=("full", "stamps"))
    parser.add_argument("--rounds", type=int, help="default: more for shorter prompts")
    parser.add_argument("--name", default="handover", help="of the file under bench/results")
    options = parser.parse_args()
    run(options.model, options.prompts, options.verify, options.rounds, options.name)


if __name__ == "__main__":
    main()
