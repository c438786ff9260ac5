"""The gateway's cost: processor time per streamed token and requests per second, against a bare aiohttp server.

The gateway is linked to null workers in one other process; the client is this process. All four share the machine, so
that requests per second say what fits on it together; processor time per token is the gateway's own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.machine import this_machine
from bench.results import Cell, publish, spread
from bench.serving.load import drive, summary

from baton_local.client import completion
from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.processes.child_process import Child, get_status, wait_for
from baton_testing.processes.deployment import START_S

ROUNDS = 5
STEP_MS = 20.0
TOKENS = 100
STREAMS = (1, 16, 64)
SINGLE_REQUESTS = 600
LANES = 16
PROMPT = tuple(range(300, 364))

COLUMNS = ("server", "load", "CPU µs per token", "CPU µs per request", "requests/s", "tokens/s", "TTFT p50 ms")


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    base_url: str
    child: Child


@contextmanager
def servers(folder: Path) -> Iterator[list[Server]]:
    """The gateway with its null workers, and the bare server."""
    step = ("--step-ms", str(STEP_MS))
    children: list[Child] = []

    def start(name: str, *argv: str) -> tuple[Child, Any]:
        announce = folder / f"{name}.json"
        children.append(Child(name, ("-m", *argv, "--announce", str(announce)), folder))
        return children[-1], children[-1].await_file(announce, START_S)

    try:
        start("null", "bench.serving.null_worker", str(folder), *step)
        echo, echo_at = start("echo", "bench.serving.echo_server", *step)
        gateway, at = start("gateway", "baton_gateway", "--listen=127.0.0.1:0", *pool_flags(folder))
        url = f"http://127.0.0.1:{at['port']}"
        wait_for(lambda: get_status(f"{url}/health/routable") == 200 or None, "the gateway to be routable", START_S)
        yield [Server("gateway", url, gateway), Server("bare aiohttp", f"http://127.0.0.1:{echo_at['port']}", echo)]
    finally:
        for child in reversed(children):
            child.stop()


def measure_streams(server: Server, streams: int) -> dict[str, float]:
    """One round of `streams` concurrent streams, two after another on each."""
    before = server.child.cpu_s()
    load = summary(drive(server.base_url, [completion("null", PROMPT, TOKENS)] * (2 * streams), streams))
    used = server.child.cpu_s() - before
    return {
        "CPU µs per token": 1e6 * used / load.tokens,
        "requests/s": load.requests_per_s,
        "tokens/s": load.tokens_per_s,
        "TTFT p50 ms": load.ttft_p50_ms,
    }


def measure_single_tokens(server: Server, lanes: int) -> dict[str, float]:
    """One round of one-token answers without streaming: what a request costs."""
    before = server.child.cpu_s()
    load = summary(drive(server.base_url, [completion("null", PROMPT, 1, stream=False)] * SINGLE_REQUESTS, lanes))
    used = server.child.cpu_s() - before
    return {"CPU µs per request": 1e6 * used / SINGLE_REQUESTS, "requests/s": load.requests_per_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds_asked, machine = parser.parse_args().rounds, this_machine()
    loads: list[tuple[str, Callable[[Server], dict[str, float]]]] = [
        *((f"{n} streams x {TOKENS} tokens", partial(measure_streams, streams=n)) for n in STREAMS),
        (f"one token, {LANES} at a time", partial(measure_single_tokens, lanes=LANES)),
    ]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as both:
        for name, measure in loads:
            rounds: dict[str, list[dict[str, float]]] = {server.name: [] for server in both}
            for round_number in range(rounds_asked + 1):
                for server in both if round_number % 2 else reversed(both):
                    figures = measure(server)
                    if round_number:  # the first round warms up
                        rounds[server.name].append(figures)
            for server in both:
                server_rounds = rounds[server.name]
                cells: dict[str, Cell] = {key: str(spread([f[key] for f in server_rounds])) for key in server_rounds[0]}
                rows.append({"server": server.name, "load": name, **cells})
    notes = [
        f"Median (least–greatest) of {rounds_asked} interleaved rounds; null workers step every {STEP_MS:.0f} ms; "
        "client, server and null workers share the cores."
    ]
    publish("gateway_cost", machine, notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
