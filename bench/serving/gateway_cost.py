"""(c) What the gateway costs: processor time per streamed token and requests per second, beside a bare aiohttp server.

The gateway is linked to null workers in one other process; the client is this process. All four share the machine, so
that requests per second say what fits on it together; processor time per token is the gateway's own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish, spread
from bench.serving.client import Ask, drive, once, summary
from bench.serving.launch import await_json, await_ok, child, cpu_s

from baton_wire.keys import write_new_key

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
    pid: int


@contextmanager
def servers(folder: Path) -> Iterator[list[Server]]:
    """The gateway with its null workers, and the bare server."""
    keys = folder / "keys"
    keys.mkdir()
    write_new_key(keys, "bench")
    step = ("--step-ms", str(STEP_MS))
    with ExitStack() as stack:
        null_announce, echo_announce = folder / "null.json", folder / "echo.json"
        null_argv = ["-m", "bench.serving.null_worker", "--keys", str(keys), "--announce", str(null_announce), *step]
        null = stack.enter_context(child(null_argv, folder / "null.log"))
        ports = await_json(null_announce, null)
        for role, port in ports.items():
            (folder / f"{role}.list").write_text(f'[{{"host": "127.0.0.1", "port": {port}}}]')
        echo_argv = ["-m", "bench.serving.echo_server", "--announce", str(echo_announce), *step]
        echo = stack.enter_context(child(echo_argv, folder / "echo.log"))
        announce = folder / "gateway.json"
        gateway_argv = [
            *("-m", "baton_gateway", "--listen", "127.0.0.1:0", "--keys", str(keys), "--announce", str(announce)),
            *("--prefill-discovery", f"file:{folder / 'prefill.list'}"),
            *("--decode-discovery", f"file:{folder / 'decode.list'}"),
        ]
        gateway = stack.enter_context(child(gateway_argv, folder / "gateway.log"))
        gateway_url = f"http://127.0.0.1:{await_json(announce, gateway)['port']}"
        await_ok(f"{gateway_url}/health/routable", gateway)
        echo_url = f"http://127.0.0.1:{await_json(echo_announce, echo)['port']}"
        yield [Server("gateway", gateway_url, gateway.pid), Server("bare aiohttp", echo_url, echo.pid)]


def streamed(server: Server, streams: int) -> dict[str, float]:
    """One round of `streams` concurrent streams, two after another on each."""
    asks = [Ask(PROMPT, TOKENS)] * (2 * streams)
    before = cpu_s(server.pid)
    load = summary(asyncio.run(drive(server.base_url, "null", asks, streams)))
    used = cpu_s(server.pid) - before
    return {
        "CPU µs per token": 1e6 * used / load.tokens,
        "requests/s": load.requests_per_s,
        "tokens/s": load.tokens_per_s,
        "TTFT p50 ms": load.ttft_p50_ms,
    }


def single(server: Server, lanes: int) -> dict[str, float]:
    """One round of one-token answers without streaming: what a request costs."""
    before = cpu_s(server.pid)
    wall_s = asyncio.run(once(server.base_url, "null", [Ask(PROMPT, 1)] * SINGLE_REQUESTS, lanes))
    used = cpu_s(server.pid) - before
    return {"CPU µs per request": 1e6 * used / SINGLE_REQUESTS, "requests/s": SINGLE_REQUESTS / wall_s}


def run() -> None:
    machine = this_machine()
    loads: list[tuple[str, Callable[[Server], dict[str, float]]]] = [
        *((f"{n} streams x {TOKENS} tokens", partial(streamed, streams=n)) for n in STREAMS),
        (f"one token, {LANES} at a time", partial(single, lanes=LANES)),
    ]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as both:
        for name, measure in loads:
            rounds: dict[str, list[dict[str, float]]] = {server.name: [] for server in both}
            for round_number in range(ROUNDS + 1):
                for server in both if round_number % 2 else reversed(both):
                    figures = measure(server)
                    if round_number:  # the first round warms up
                        rounds[server.name].append(figures)
            for server in both:
                found = rounds[server.name]
                cells: dict[str, Cell] = {key: str(spread([f[key] for f in found])) for key in found[0]}
                rows.append({"server": server.name, "load": name, **cells})
    notes = [
        f"Median (least–greatest) of {ROUNDS} interleaved rounds; null workers step every {STEP_MS:.0f} ms; "
        "client, server and null workers share the cores."
    ]
    publish("gateway_cost", machine, notes, COLUMNS, rows)


if __name__ == "__main__":
    run()
