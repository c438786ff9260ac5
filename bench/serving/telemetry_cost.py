"""The cost of telemetry in the gateway: processor time with records and traces on and off, in turns.

Gateways with different flags are linked to the same null workers, and each round loads one after another, every second
round in the reverse order. Rounds are compared in pairs with the gateway that has everything off; a second gateway of
that kind shows how far equal ones differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machine import this_machine
from bench.results import Cell, publish, spread
from bench.serving.gateway_cost import LANES, PROMPT, Server
from bench.serving.load import drive

from baton_local.client import completion
from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.processes.child_process import Child, get_status, wait_for
from baton_testing.processes.deployment import START_S

ROUNDS = 15
STEP_MS = 5.0
STREAMS, TOKENS, WAVES = 64, 100, 4
SINGLE_REQUESTS = 1_000
OFF, ALL_ON = "all off", "all on"
AIM_PERCENT = 2.0
COLUMNS = ("gateway", "CPU µs per token", "more a token, %", "CPU µs per request", "more a request, %")


def variants(collector: str | None) -> dict[str, tuple[str, ...]]:
    """Return the flags of each gateway. `collector`: None: traces cannot be exported here."""
    off, kept = ("--request-records=0",), ("--request-records=10000",)
    chosen: dict[str, tuple[str, ...]] = {OFF: off, "all off, again": off, "records": kept}
    if collector is not None:
        traced = (*kept, f"--tracing-endpoint={collector}")
        chosen[ALL_ON] = (*traced, "--tracing-sample-ratio=0.01")
        chosen["all on, every request traced"] = (*traced, "--tracing-sample-ratio=1")
    return chosen


@contextmanager
def servers(folder: Path) -> Iterator[list[Server]]:
    """Start the null workers, a collector where the extra `otel` is installed, and the gateways."""
    children: list[Child] = []

    def start(name: str, *argv: str) -> tuple[Child, Any]:
        announce = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
        children.append(Child(announce.stem, ("-m", *argv, "--announce", str(announce)), folder))
        return children[-1], children[-1].await_file(announce, START_S)

    try:
        start("null", "bench.serving.null_worker", str(folder), "--step-ms", str(STEP_MS))
        collector = None
        if importlib.util.find_spec("opentelemetry") is not None:
            collector = f"http://127.0.0.1:{start('collector', 'bench.serving.trace_sink')[1]['port']}"
        started = []
        for name, flags in variants(collector).items():
            gateway, at = start(name, "baton_gateway", "--listen=127.0.0.1:0", *pool_flags(folder), *flags)
            started.append(Server(name, f"http://127.0.0.1:{at['port']}", gateway))
        for server in started:
            url = f"{server.base_url}/health/routable"
            wait_for(lambda url=url: get_status(url) == 200 or None, f"{server.name} to be routable", START_S)  # type: ignore[misc]
        yield started
    finally:
        for child in reversed(children):
            child.stop()


def token_cost_us(server: Server) -> float:
    """Measure a round of concurrent streams: processor time a token."""
    before = server.child.cpu_s()
    answers = drive(server.base_url, [completion("null", PROMPT, TOKENS)] * (WAVES * STREAMS), STREAMS)
    return 1e6 * (server.child.cpu_s() - before) / sum(answer.tokens for answer in answers)


def request_cost_us(server: Server) -> float:
    """Measure a round of answers of one token: processor time a request."""
    before = server.child.cpu_s()
    drive(server.base_url, [completion("null", PROMPT, 1, stream=False)] * SINGLE_REQUESTS, LANES)
    return 1e6 * (server.child.cpu_s() - before) / SINGLE_REQUESTS


def middle_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds between which the median is, in 95 of 100 series of rounds like these."""
    ordered, count = sorted(values), len(values)
    out = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[out], ordered[count - 1 - out]


def compare(rounds: dict[str, list[float]], name: str) -> tuple[Cell, float]:
    """Return how much more a gateway takes than the one with everything off, in percent: as text, and the median."""
    more = [100 * (on / off - 1) for on, off in zip(rounds[name], rounds[OFF], strict=True)]
    low, high = middle_interval(more)
    return f"{spread(more).median:+.1f} ({low:+.1f} to {high:+.1f})", spread(more).median


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=10.0, help="no round begins later (default %(default)s)")
    options, machine = parser.parse_args(), this_machine()
    until_s = time.monotonic() + 60 * options.minutes
    tokens: dict[str, list[float]] = {}
    requests: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as started:
        for number in range(options.rounds + 1):
            if number > 1 and time.monotonic() > until_s:
                break
            for server in started if number % 2 else reversed(started):
                figures = token_cost_us(server), request_cost_us(server)
                if number:  # the first round warms up
                    tokens.setdefault(server.name, []).append(figures[0])
                    requests.setdefault(server.name, []).append(figures[1])
    rows: list[dict[str, Cell]] = []
    for name in (server.name for server in started):
        cells: list[Cell] = [name, str(spread(tokens[name])), None, str(spread(requests[name])), None]
        if name != OFF:
            cells[2], cells[4] = compare(tokens, name)[0], compare(requests, name)[0]
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    notes = [
        f"{len(tokens[OFF])} rounds in turns: {STREAMS} streams of {TOKENS} tokens, then answers of one token, {LANES} "
        f"at a time; null workers step every {STEP_MS:.0f} ms. Median (least–greatest); more: median of the "
        "rounds' pairs, and where it is in 95 of 100 cases.",
    ]
    publish("telemetry_cost", machine, notes, COLUMNS, rows)
    if ALL_ON not in tokens:
        print("VERDICT: not judged: the extra 'otel' is not installed, so no traces were exported")
        return 1
    more = compare(tokens, ALL_ON)[1]
    print(f"VERDICT: {'held' if more <= AIM_PERCENT else 'missed'}: {more:+.1f} % a token (aim {AIM_PERCENT:g} %)")
    return 0 if more <= AIM_PERCENT else 1


if __name__ == "__main__":
    raise SystemExit(main())
