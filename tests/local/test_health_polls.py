"""Health checks of a gateway with several processes, one of which hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from aiohttp import web
from aiohttp.test_utils import TestServer

from baton_local.fleet.health_polls import PROBES_PER_PROCESS, TRIES, HealthPolls
from baton_local.fleet.supervision import Action, Supervisor
from baton_testing.gateway.gateway_process import until
from baton_wire.announcement import Announcement
from baton_wire.messages.values import Role

PROCESSES = 4
TIMEOUT_S = 0.05
STANDS_STILL = 0
"""In place of a status: this question gets no answer."""


class Gateway:
    """Answers questions in turn with the given answers, and then with the last of them."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.asked = list(statuses), 0

    async def answer(self, request: web.Request) -> web.Response:
        status = self.statuses[min(self.asked, len(self.statuses) - 1)]
        self.asked += 1
        if status == STANDS_STILL:
            await asyncio.sleep(20 * TIMEOUT_S)
        return web.Response(status=status or 503)


async def live(request: web.Request) -> web.Response:
    return web.Response()


@contextlib.asynccontextmanager
async def polled(gateway: Gateway, *, routable: bool) -> AsyncIterator[tuple[Supervisor, list[Action]]]:
    """A supervisor of workers that are ready, and what followed from the gateway's answers."""
    app = web.Application()
    app.router.add_get("/health/routable", gateway.answer)
    app.router.add_get("/health/live", live)
    supervisor, followed = Supervisor(0.0), list[Action]()
    async with TestServer(app) as server:
        assert server.port is not None
        for number, role in enumerate((Role.GATEWAY, Role.PREFILL, Role.DECODE)):
            supervisor.add(str(number), role, 0.0)
            supervisor.announced(str(number), Announcement(1, "127.0.0.1", server.port, None, None), 0.0)
        if routable:
            supervisor.observed_routable(True)

        def act(actions: Iterable[Action]) -> None:
            followed.extend(actions)

        polls = HealthPolls(supervisor, str(server.make_url("")), PROCESSES, lambda: False, act, TIMEOUT_S)
        task = asyncio.create_task(polls.run())
        try:
            yield supervisor, followed
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_one_process_that_stands_still_says_nothing_of_the_others() -> None:
    gateway = Gateway(STANDS_STILL, 200)
    async with polled(gateway, routable=True) as (supervisor, followed):
        await until(lambda: gateway.asked >= 3)
        assert supervisor.routable
        assert followed == []


async def test_a_gateway_that_stands_still_is_not_called_without_workers() -> None:
    gateway = Gateway(STANDS_STILL)
    async with polled(gateway, routable=True) as (supervisor, followed):
        await until(lambda: gateway.asked >= TRIES + 1)
        assert supervisor.routable, "whether it lives is asked elsewhere"
        assert followed == []


async def test_a_gateway_that_says_no_is_believed_at_once() -> None:
    gateway = Gateway(503)
    async with polled(gateway, routable=True) as (supervisor, followed):
        await until(lambda: gateway.asked >= 2)
        assert not supervisor.routable
        assert len(followed) == 1


async def test_at_first_every_process_has_to_say_yes() -> None:
    gateway = Gateway(*[200] * 20, 503, 200)
    async with polled(gateway, routable=False) as (supervisor, _):
        await until(lambda: supervisor.routable)
        assert gateway.asked >= 21 + PROBES_PER_PROCESS * PROCESSES
