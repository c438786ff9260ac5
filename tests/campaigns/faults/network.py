"""A service whose processes each live in a network namespace, so that a link can be cut silently, also one way only.

Every process has an address of its own behind one router; a cut is a policy rule of the router that drops what goes
from one address to another silently. Needs root and `ip` (iproute2). The campaign itself runs next to the gateway
and asks the workers from a second address, which is never cut.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from baton_testing.processes.child_process import Child
from baton_testing.processes.deployment import Deployment, Shape
from campaigns.faults.fleet import POLL_S, Fleet, Member, WorkerBooks, books_of, page, wait_until
from campaigns.faults.load import MODEL
from campaigns.faults.rounds import NOTICE_LIMIT_S, Round, note_time, until_unlinked

PREFIX = os.environ.get("BATON_FAULTS_NETNS", "baton-faults")
"""Prefix of the names of the namespaces."""
PARTIES = ("gateway", "prefill-0", "prefill-1", "decode-0", "decode-1")
ROUTER = f"{PREFIX}-router"


def address(party: str) -> str:
    return f"10.77.{PARTIES.index(party) + 1}.2"


OBSERVER = f"10.77.{PARTIES.index('gateway') + 1}.3"


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(("ip", *arguments), check=check, capture_output=not check)


@contextmanager
def namespaces() -> Iterator[None]:
    """The router and one namespace for each party; removed with everything in them."""
    names = [ROUTER, *(f"{PREFIX}-{party}" for party in PARTIES)]
    for name in names:
        _ip("netns", "del", name, check=False)
    try:
        _ip("netns", "add", ROUTER)
        for party in PARTIES:
            _join(party)
        for key in ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"):
            subprocess.run(("ip", "netns", "exec", ROUTER, "sysctl", "-qw", key), check=True)
        yield
    finally:
        for name in names:
            _ip("netns", "del", name, check=False)


def _join(party: str) -> None:
    name, number = f"{PREFIX}-{party}", PARTIES.index(party) + 1
    _ip("netns", "add", name)
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", ROUTER, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("-n", ROUTER, "addr", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
    _ip("-n", ROUTER, "link", "set", f"to{number}", "up")
    _ip("-n", name, "addr", "add", f"{address(party)}/24", "dev", "eth0")
    if party == "gateway":
        _ip("-n", name, "addr", "add", f"{OBSERVER}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "route", "add", "default", "via", f"10.77.{number}.1", "src", address(party))


def inside(argv: Sequence[str]) -> int:
    """Run this Python with `argv` next to the gateway, in fresh namespaces; its exit status."""
    with namespaces():
        command = ("ip", "netns", "exec", f"{PREFIX}-gateway", sys.executable, *argv)
        return subprocess.run(command, check=False).returncode


def cut(sender: str, receiver: str, *, heal: bool = False) -> None:
    """Drop, or let through again, everything from one party to another."""
    _ip("-n", ROUTER, "rule", "del" if heal else "add", "from", address(sender), "to", address(receiver), "blackhole")


class NetworkService(Deployment):
    """Every process in the namespace of its party."""

    def host_of(self, name: str) -> str:
        return address(name)

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        return Child(name, argv, self.folder, extra, under=("ip", "netns", "exec", f"{PREFIX}-{name}"))


SHAPE = Shape(
    *(2, 2, 2),
    served_name=MODEL,
    worker_flags=("--dtype", "float32", "--kv-cache-bytes", str(16 << 20), "--drain-s", "5"),
    gateway_flags=("--admin-listen", "127.0.0.1:0", "--drain-s", "2"),
)


class NetworkFleet:
    """Two prefill and two decode workers and a gateway of two processes in their namespaces. A context."""

    def __init__(self, folder: Path) -> None:
        self._service = NetworkService(folder, SHAPE)
        self._session: aiohttp.ClientSession
        self._local: aiohttp.ClientSession
        self._members: dict[str, Member] = {}
        self._pages: dict[str, str] = {}
        self.host, self.port = "127.0.0.1", 0

    async def __aenter__(self) -> NetworkFleet:
        timeout = aiohttp.ClientTimeout(total=2.0)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(local_addr=(OBSERVER, 0), force_close=True)
        )
        self._local = aiohttp.ClientSession(timeout=timeout)
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._service.stop()
        await self._session.close()
        await self._local.close()

    async def _start(self) -> None:
        self._service.start()
        self.port = self._service.port
        for worker in self._service.workers:
            party = worker.child.name
            self._pages[party] = f"{worker.base_url}/state"
            state = await page(self._session, self._pages[party])
            self._members[party] = Member(party, worker.role, worker.child.pid, state["epoch"])
        await wait_until(self)

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self._service.folder

    async def members(self) -> list[Member]:
        return list(self._members.values())

    async def is_complete(self) -> bool:
        state = await self._gateway_state()
        if state is None or [process["workers_linked"] for process in state["processes"]] != [4, 4]:
            return False
        if any(worker["state"] != "live" for worker in state["workers"]):
            return False
        books = await self.books()
        return len(books) == 4 and all(worker_books.peers == 2 for worker_books in books)

    async def linked(self) -> set[str]:
        state = await self._gateway_state()
        return set() if state is None else {worker["epoch"] for worker in state["workers"]}

    async def books(self) -> list[WorkerBooks]:
        states = await asyncio.gather(*(page(self._session, url) for url in self._pages.values()))
        return [books_of(name, state) for name, state in zip(self._pages, states, strict=True) if state is not None]

    async def counts(self) -> dict[str, float]:
        """Nothing: they are not asked for across namespaces."""
        return {}

    async def _gateway_state(self) -> Any:
        return await page(self._local, f"http://127.0.0.1:{self._service.admin_port}/state")


@dataclass(frozen=True, slots=True)
class Break:
    """A cut of the network: (sender, receiver) pairs, and whose gateway links must end when it lasts."""

    label: str
    ways: tuple[tuple[str, str], ...]
    pair: tuple[str, str]


class Cut:
    """Silence on one link, both ways or one way, or around one worker."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._until_s = 0.0
        self._is_long = False
        self._break = Break("", (), ("", ""))

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        return list(members)

    async def strike(self, victim: Member, round_: Round) -> None:
        self._break = self._choose(victim)
        self._is_long = self._draw.random() < 0.6
        cut_s = self._draw.uniform(4.0, 8.0) if self._is_long else self._draw.uniform(0.3, 2.2)
        round_.role = f"{self._break.label}, {'> 3' if self._is_long else '< 2.5'} s"
        for sender, receiver in self._break.ways:
            cut(sender, receiver)
        self._until_s = time.monotonic() + cut_s

    async def heal(self, victim: Member, round_: Round) -> None:
        await asyncio.sleep(max(0.0, self._until_s - time.monotonic()))
        for sender, receiver in self._break.ways:
            cut(sender, receiver, heal=True)

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        if not self._is_long:
            return
        if "gateway" in self._break.pair or not self._break.pair[0]:
            await until_unlinked(fleet, victim.epoch, round_, struck)
        else:
            await _until_unpaired(fleet, self._break.pair, round_, struck)

    def _choose(self, victim: Member) -> Break:
        if self._draw.random() < 0.2:
            others = [party for party in PARTIES if party != victim.name]
            return Break(f"all links of {victim.role}", tuple(_both(victim.name, *others)), ("", ""))
        other_role = "decode" if victim.role == "prefill" else "prefill"
        other = "gateway" if self._draw.random() < 0.5 else f"{other_role}-{self._draw.randrange(2)}"
        named = other.split("-")[0]
        way = self._draw.choice(("both", "to", "from"))
        if way == "both":
            return Break(f"{victim.role} and {named}", tuple(_both(victim.name, other)), (victim.name, other))
        sender, receiver = (victim.name, other) if way == "from" else (other, victim.name)
        return Break(f"{sender.split('-')[0]} to {receiver.split('-')[0]}", ((sender, receiver),), (victim.name, other))


def _both(party: str, *others: str) -> list[tuple[str, str]]:
    return [way for other in others for way in ((party, other), (other, party))]


async def _until_unpaired(fleet: Fleet, pair: tuple[str, str], round_: Round, struck: float) -> None:
    """Wait until both workers of a pair have given their link up."""
    while time.monotonic() - struck < NOTICE_LIMIT_S:
        books = {worker_books.name: worker_books for worker_books in await fleet.books()}
        if all(name in books and books[name].peers < 2 for name in pair):
            note_time(round_, time.monotonic() - struck)
            return
        await asyncio.sleep(POLL_S)
    round_.problems.append(f"{' and '.join(pair)} did not notice within {NOTICE_LIMIT_S} s")
