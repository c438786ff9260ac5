"""Health checks of the running processes over HTTP: is each one live, and can the gateway route?

The supervisor decides what follows from the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import aiohttp

from baton_local.fleet.supervision import Action, Phase, ProcessSlot, Supervisor
from baton_wire.messages.values import Role

ROUTABLE_POLL_S = 0.1
"""Interval while the gateway is not routable; ten times as long once it is."""
TIMEOUT_S = 2.0
OK = 200
PROBES_PER_PROCESS = 8
TRIES = 3
"""Requests before the gateway counts as silent: one of its processes may hang while the others answer."""


class HealthPolls:
    """The health checks of one deployment. `asleep` returns True while its pools are empty on purpose."""

    def __init__(
        self,
        supervisor: Supervisor,
        endpoint: str,
        processes: int,
        asleep: Callable[[], bool],
        act: Callable[[Iterable[Action]], None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`endpoint`: the gateway's URL; `processes`: number of gateway processes that share it; `act`: carries out the
        supervisor's actions; `timeout_s`: of one routability check."""
        self._supervisor, self._endpoint, self._processes = supervisor, endpoint, processes
        self._asleep, self._act, self._timeout_s = asleep, act, timeout_s

    async def run(self) -> None:
        """Poll until cancelled."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            group.create_task(self._watch_routable(session))
            group.create_task(self._watch_live(session))

    async def _watch_routable(self, session: aiohttp.ClientSession) -> None:
        while True:
            slots = self._supervisor.slots.values()
            is_up = any(slot.role is Role.GATEWAY and slot.phase is Phase.READY for slot in slots)
            routable = await self._routes(session) if is_up else False
            self._act(self._supervisor.observed_routable(routable))
            calm = routable and self._supervisor.was_ready
            await asyncio.sleep(10 * ROUTABLE_POLL_S if calm else ROUTABLE_POLL_S)

    async def _routes(self, session: aiohttp.ClientSession) -> bool | None:
        """True when the gateway is routable. At first all its processes have to be: each request takes a fresh
        connection, and enough are sent that probably none is missed. Later the first answer counts. None: no answer."""
        page = "/health/ready" if self._asleep() else "/health/routable"  # without workers on purpose, requests wait
        is_first_enough = self._supervisor.routable or self._processes == 1
        status = None
        for _ in range(TRIES if is_first_enough else PROBES_PER_PROCESS * self._processes):
            status = await _status(session, f"{self._endpoint}{page}", self._timeout_s)
            is_decided = status is not None if is_first_enough else status != OK
            if is_decided:
                break
        return None if status is None else status == OK

    async def _watch_live(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._supervisor.patience.live_poll_s)
            ready = [slot for slot in self._supervisor.slots.values() if slot.phase is Phase.READY]
            await asyncio.gather(*(self._check_live(session, slot) for slot in ready))

    async def _check_live(self, session: aiohttp.ClientSession, slot: ProcessSlot) -> None:
        at, incarnation = slot.announcement, slot.incarnation
        if at is None:
            return
        host = f"[{at.host}]" if ":" in at.host else at.host
        address = self._endpoint if slot.role is Role.GATEWAY else f"http://{host}:{at.port}"
        is_live = await _status(session, f"{address}/health/live", self._supervisor.patience.live_answer_s) == OK
        self._act(self._supervisor.checked_live(slot.name, incarnation, is_live, time.monotonic()))


async def _status(session: aiohttp.ClientSession, url: str, timeout_s: float) -> int | None:
    """The HTTP status of a page; None: no answer in time."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout_s)) as answer:
            return answer.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
