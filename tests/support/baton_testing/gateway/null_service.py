"""One gateway in front of null workers, as processes of their own: what campaigns against the gateway alone attack."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.processes.child_process import Child, get_json, get_status, get_text, wait_for
from baton_testing.processes.deployment import START_S

MODEL = "null"
STEP_MS = 20.0
MIB = 1 << 20
LAG = re.compile(r'baton_gateway_loop_lag_seconds_bucket\{le="(.+)"\} (.+)')


@dataclass(slots=True)
class Target:
    """A gateway under attack."""

    port: int
    admin_port: int
    gateway: Child
    process: psutil.Process
    folder: Path
    """The folder of keys and discovery files."""

    @property
    def rss_mib(self) -> float:
        return float(self.process.memory_info().rss) / MIB

    def processes(self) -> list[psutil.Process]:
        """Return the gateway and its helper processes."""
        return [self.process, *self.process.children(recursive=True)]

    def lags(self) -> dict[float, float]:
        """Return how many timers of the gateway's loop fired within each bound in seconds since it started."""
        page = get_text(f"http://127.0.0.1:{self.admin_port}/metrics")
        return {float(bound): float(count) for bound, count in LAG.findall(page)}

    def state(self) -> Any:
        """The report of the gateway's only process; None while it does not answer."""
        page = get_json(f"http://127.0.0.1:{self.admin_port}/state")
        return None if page is None else page["processes"][0]

    def held_by_workers(self) -> int:
        """Sequences and reservations of all null workers."""
        ports = [row["port"] for role in ("prefill", "decode") for row in _discovered(self.folder / f"{role}.json")]
        states = [get_json(f"http://127.0.0.1:{port}/state") for port in ports]
        return sum(state["running"] + state["reserved"] for state in states)


def _discovered(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


@contextlib.contextmanager
def target(folder: Path, context: int, *flags: str, step_ms: float = STEP_MS) -> Iterator[Target]:
    """`flags`: further ones of the gateway's."""
    children: list[Child] = []

    def start(name: str, *argv: str) -> tuple[Child, Any]:
        announce = folder / f"{name}.json"
        announce.unlink(missing_ok=True)  # of an earlier run in this folder
        children.append(Child(name, ("-m", *argv, "--announce", str(announce)), folder))
        return children[-1], children[-1].await_file(announce, START_S)

    try:
        worker = ("--step-ms", str(step_ms), "--context-tokens", str(context), "--takes-turns")
        start("null", "bench.serving.null_worker", str(folder), *worker)
        listening = ("--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0")
        gateway, at = start("gateway", "baton_gateway", *listening, *pool_flags(folder), *flags)
        url = f"http://127.0.0.1:{at['port']}"
        wait_for(lambda: get_status(f"{url}/health/routable") == 200 or None, "the gateway to be routable", START_S)
        yield Target(at["port"], at["admin_port"], gateway, psutil.Process(at["pid"]), folder)
    finally:
        for child in reversed(children):
            child.stop()
