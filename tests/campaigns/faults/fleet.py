"""A service under a fault campaign: `baton up`, usually with two workers of each role and two gateway processes, and
the state that its processes report.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import aiohttp
import psutil

from baton_local.errors import NotRunningError
from baton_local.fleet.record import RunRecord, read_record
from baton_testing.processes import scripted_up
from baton_testing.processes.baton_up import BATON, Up, manifest

READY_S = 180.0
POLL_S = 0.05
QUEUE = {"maxQueueDuration": "60s"}
"""Answers are counted, however slow the machine is."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process that a fault may hit. `epoch` is empty for gateway processes."""

    name: str
    role: str
    pid: int
    epoch: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class WorkerBooks:
    """A worker's blocks and work, and what its landing region cannot give out."""

    name: str
    epoch: str
    free: int
    total: int
    running: int
    waiting: int
    peers: int
    """Workers of the other role that it is linked with."""
    quarantined_bytes: int

    @property
    def at_baseline(self) -> bool:
        return self.free == self.total and self.running == self.waiting == 0


class Fleet(Protocol):
    host: str
    port: int

    @property
    def logs(self) -> Path: ...

    async def members(self) -> list[Member]:
        """Everybody who runs and is known to all gateway processes."""
        ...

    async def is_complete(self) -> bool: ...

    async def linked(self) -> set[str]:
        """Epochs that at least one gateway process has linked."""
        ...

    async def books(self) -> list[WorkerBooks]:
        """The books of every worker that answers."""
        ...

    async def counts(self) -> dict[str, float]:
        """Attempts after the first and continued ones, as the gateway counts them, and each worker's preemptions."""
        ...


async def wait_until(fleet: Fleet, timeout_s: float = READY_S) -> float:
    """Wait for a complete fleet; the seconds it took. Raises TimeoutError."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not await fleet.is_complete():  # noqa: ASYNC110 - other processes, no event
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def page(session: aiohttp.ClientSession, url: str) -> Any:
    """A JSON page, or None while no process answers."""
    try:
        async with session.get(url) as response:
            return await response.json() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


async def series(session: aiohttp.ClientSession, url: str, name: str) -> float:
    """The sum of a counter's series on a page of metrics; 0 while no process answers: what was counted is then lost."""
    try:
        async with session.get(url) as response:
            lines = (await response.text()).splitlines()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def books_of(name: str, state: Any) -> WorkerBooks:
    return WorkerBooks(
        name,
        state["epoch"],
        state["blocks_free"],
        state["blocks_total"],
        state["running"],
        state["waiting"],
        state["transfer"]["peers"],
        state["transfer"].get("quarantined_bytes", 0),
    )


class UpFleet:
    """`baton up` as a child process. A context."""

    def __init__(
        self, folder: Path, per_role: int = 2, processes: int = 2, kv_memory: str = "16Mi", **spec: dict[str, Any]
    ) -> None:
        """`spec`: further fields of the manifest's, pools too."""
        self._folder = folder
        self._workers = 2 * per_role
        self._processes = processes
        pool = {"replicas": {"min": per_role, "max": per_role}, "engine": {"kvCacheMemory": kv_memory}}
        pools = {"prefill": pool, "decode": pool, "gateway": {"processes": processes, "limits": QUEUE}}
        self._manifest = manifest("faults", "campaign", **pools | _with_usual(spec, pool))
        self._program: Sequence[str] = BATON
        self._peers = per_role
        """Links of a worker to others."""
        self._up: Up
        self._session: aiohttp.ClientSession
        self.host, self.port = "127.0.0.1", 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0))
        paths = os.pathsep.join(sys.path)
        self._up = Up(self._folder, self._manifest, program=self._program, extra={"PYTHONPATH": paths})
        try:
            self.port = int(self._up.await_ready().rpartition(":")[2])
            await wait_until(self)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._up.child.stop(60)
        await self._session.close()

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self._up.run_dir.logs

    async def members(self) -> list[Member]:
        record = self._record()
        if record is None:
            return []
        members = []
        for process in record.processes:
            if process.pid is None or process.phase != "ready":
                continue
            if process.role == "gateway":
                members.append(Member(process.name, "gateway", process.pid))
                pids = _gateway_children(process.pid)
                members += [Member(f"{process.name}/{n}", "gateway process", pid) for n, pid in enumerate(pids)]
            elif (state := await page(self._session, f"http://{process.address}/state")) is not None:
                members.append(Member(process.name, process.role, process.pid, state["epoch"]))
        return members

    async def is_complete(self) -> bool:
        record, state = self._record(), await self._gateway_state()
        if record is None or state is None or any(process.phase != "ready" for process in record.processes):
            return False
        linked = [process["workers_linked"] for process in state["processes"]]
        if linked != [self._workers] * self._processes:
            return False
        books = await self.books()
        is_linked = {worker_books.epoch for worker_books in books} == {worker["epoch"] for worker in state["workers"]}
        return is_linked and all(worker_books.peers == self._peers for worker_books in books)

    async def linked(self) -> set[str]:
        state = await self._gateway_state()
        return set() if state is None else {worker["epoch"] for worker in state["workers"]}

    async def books(self) -> list[WorkerBooks]:
        record = self._record()
        processes = (
            []
            if record is None
            else [process for process in record.processes if process.role != "gateway" and process.address]
        )
        states = await asyncio.gather(
            *(page(self._session, f"http://{process.address}/state") for process in processes)
        )
        return [
            books_of(process.name, state) for process, state in zip(processes, states, strict=True) if state is not None
        ]

    async def counts(self) -> dict[str, float]:
        record = self._record()
        counts: dict[str, float] = {}
        for process in () if record is None else record.processes:
            if process.role == "gateway" and process.admin_port is not None:
                page = f"http://127.0.0.1:{process.admin_port}/metrics"
                for name in ("retries", "migrations"):
                    counts[name] = await series(self._session, page, f"baton_gateway_{name}_total")
            elif process.address is not None:
                page = f"http://{process.address}/metrics"
                counts[f"preemptions {process.pid}"] = await series(self._session, page, "baton_preemptions_total")
                drawn = f'baton_tokens_total{{kind="drawn",role="{process.role}"}}'
                counts[f"drawn-{process.role} {process.pid}"] = await series(self._session, page, drawn)
        return counts

    async def _gateway_state(self) -> Any:
        record = self._record()
        gateway = next((process for process in record.processes if process.role == "gateway"), None) if record else None
        if gateway is None or gateway.admin_port is None:
            return None
        return await page(self._session, f"http://127.0.0.1:{gateway.admin_port}/state")

    def _record(self) -> RunRecord | None:
        try:
            return read_record(self._up.run_dir)
        except NotRunningError:
            return None


FLIPPING = {"replicas": {"min": 1, "max": 3}}


def keeping_fleet(folder: Path) -> UpFleet:
    """Two workers of each role, of which every one may compute a prompt and decode its answer.

    They may by default. The target between tokens is near what a step of the tiny model takes: so some answers are kept
    by a prefill worker, and some are handed over.
    """
    targets = {"ttft": {"target": "500ms", "percentile": 95}, "tpot": {"target": "1ms", "percentile": 95}}
    return UpFleet(folder, slo=targets)


class FlippingFleet(UpFleet):
    """Four workers that flip whenever they are ordered to, in pools of one to three workers."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, autoscaling={"flips": True}, prefill=FLIPPING, decode=FLIPPING)
        self._draw, self._sizes, self._prefill = draw, folder / "sizes", 2
        scripted_up.write(self._sizes, 2, 2)
        self._program = ("-m", "baton_testing.processes.scripted_up", str(self._sizes))
        self._peers = 2 * (self._workers - 1)  # each dialled all others, and was dialled by them

    def flip(self) -> None:
        """Other sizes of the pools: one worker changes its role, or two do."""
        self._prefill = self._draw.choice([size for size in (1, 2, 3) if size != self._prefill])
        scripted_up.write(self._sizes, self._prefill, self._workers - self._prefill)

    def took_s(self) -> list[float]:
        """Seconds of each flip that was carried out, as `baton up` reports."""
        return [float(seconds) for seconds in re.findall(r" after ([0-9.]+) s \(flip \d+\)", self._up.child.output())]


def _with_usual(spec: Mapping[str, dict[str, Any]], pool: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**pool, **value} if name in ("prefill", "decode") else value for name, value in spec.items()}


def connections_of(pid: int, port: int) -> set[int]:
    """The client ports of the connections that a gateway process has taken on `port`."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return set()
    return {connection.raddr.port for connection in connections if connection.raddr and connection.laddr.port == port}


def _gateway_children(pid: int) -> list[int]:
    """The serving processes of a gateway: not what renders its templates."""
    try:
        children = psutil.Process(pid).children()
        return sorted(child.pid for child in children if "baton_gateway" in child.cmdline())
    except psutil.NoSuchProcess:
        return []
