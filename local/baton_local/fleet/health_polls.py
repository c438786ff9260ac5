"""Asks the running processes over HTTP: whether each still answers, and whether the gateway can route.

What follows from the answers is the supervisor's to decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import aiohttp

from baton_local.fleet.supervision import Action, Phase, ProcessSlot, Supervisor
from baton_wire.messages.values import Role

ROUTABLE_POLL_S = 0.1
"""While the gateway is not routable; ten times as long once it is."""
TIMEOUT_S = 2.0
OK = 200
PROBES_PER_PROCESS = 8
TRIES = 3
"""Where one process that stands still may be asked: so many questions before nobody is taken to answer."""


class HealthPolls:
    """The polls of one deployment's processes. `asleep` says whether its pools are empty on purpose."""

    def __init__(
        self,
        supervisor: Supervisor,
        endpoint: str,
        processes: int,
        asleep: Callable[[], bool],
        act: Callable[[Iterable[Action]], None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`endpoint`: the gateway's URL; `processes`: how many share it; `act` carries out what follows; `timeout_s`:
        of an answer whether it is routable."""
        self._supervisor, self._endpoint, self._processes = supervisor, endpoint, processes
        self._asleep, self._act, self._timeout_s = asleep, act, timeout_s

    async def run(self) -> None:
        """Until cancelled."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            group.create_task(self._watch_routable(session))
            group.create_task(self._watch_live(session))

    async def _watch_routable(self, session: aiohttp.ClientSession) -> None:
        while True:
            slots = self._supervisor.slots.values()
            is_up = any(slot.role is Role.GATEWAY and slot.phase is Phase.READY for slot in slots)
            routable = await self._routes(session) if is_up else False
            self._act(self._supervisor.heard_routable(routable))
            calm = routable and self._supervisor.was_ready
            await asyncio.sleep(10 * ROUTABLE_POLL_S if calm else ROUTABLE_POLL_S)

    async def _routes(self, session: aiohttp.ClientSession) -> bool | None:
        """Whether the gateway is routable: at first every process of it, asked over fresh connections so often that
        none is likely to be missed; later the first that answers. None: nobody does."""
        page = "/health/ready" if self._asleep() else "/health/routable"  # without workers on purpose, requests wait
        is_first_enough = self._supervisor.routable or self._processes == 1
        status = None
        for _ in range(TRIES if is_first_enough else PROBES_PER_PROCESS * self._processes):
            status = await _status(session, f"{self._endpoint}{page}", self._timeout_s)
            is_told = status is not None if is_first_enough else status != OK
            if is_told:
                break
        return None if status is None else status == OK

    async def _watch_live(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._supervisor.patience.live_poll_s)
            ready = [slot for slot in self._supervisor.slots.values() if slot.phase is Phase.READY]
            await asyncio.gather(*(self._ask(session, slot) for slot in ready))

    async def _ask(self, session: aiohttp.ClientSession, slot: ProcessSlot) -> None:
        at, incarnation = slot.announcement, slot.incarnation
        if at is None:
            return
        host = f"[{at.host}]" if ":" in at.host else at.host
        address = self._endpoint if slot.role is Role.GATEWAY else f"http://{host}:{at.port}"
        is_live = await _status(session, f"{address}/health/live", self._supervisor.patience.live_answer_s) == OK
        self._act(self._supervisor.asked_live(slot.name, incarnation, is_live, time.monotonic()))


async def _status(session: aiohttp.ClientSession, url: str, timeout_s: float) -> int | None:
    """Of HTTP; None: no answer in time."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout_s)) as answer:
            return answer.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
