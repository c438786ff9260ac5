"""Faulty variants of the parts that isolate tenants, and of the parts that report whether a gateway serves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from baton_gateway import errors
from baton_gateway.errors import RefusedError
from baton_gateway.http_api.lookups import Lookups
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.model_loads import ModelLoads
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.run import Run, RunState
from baton_gateway.requests.tenant import DEFAULT_TENANT
from baton_gateway.requests.wait_prediction import WaitBound, predict_wait_s
from baton_gateway.text.chat_template import RenderedChat
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.pool_load import pool_services
from baton_testing.simulation.chaos.plan import ChaosScenario, Weather, chaos_scenario
from baton_testing.simulation.chaos.world import ChaosWorld
from baton_testing.simulation.zoo.zoo import Mutant


class KnowsNoTenants(Admission):
    """One queue in order of arrival: a flood of one tenant goes before all others."""

    def offer(self, tenant: Any, *given: Any, **named: Any) -> Any:
        return super().offer(DEFAULT_TENANT, *given, **named)


class PredictsForEverybody(ModelLoads):
    """Every request is refused for requests that wait for another tenant's quota."""

    def overload(self, request: Any, tenant: Any, work: Any, rules: Any, now: float, place: Any = None) -> Any:
        line = self._load(request.options.model)
        bound: WaitBound = line.__dict__.setdefault("bound_of_all", WaitBound())
        wait_s = predict_wait_s(line.held, *pool_services(self._table.views(), request.options.model, 5.0))
        if wait_s is None or wait_s <= bound.of(wait_s, 0.0, rules, now):
            return None
        return errors.overloaded(wait_s, 0.0, 1)


class KeepsTurnsOfTheGone(TemplateRenderer):
    """A client that hangs up in the middle of its turn takes the turn with it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._taken = asyncio.Lock()

    async def render(self, *given: Any, **named: Any) -> RenderedChat:
        await self._taken.acquire()
        try:
            rendered = await super().render(*given, **named)
        except RefusedError:
            self._taken.release()
            raise
        self._taken.release()
        return rendered


class WaitsWithoutProcess(TemplateRenderer):
    """No process can be started, and requests get no answer."""

    async def render(self, *given: Any, **named: Any) -> RenderedChat:
        try:
            return await super().render(*given, **named)
        except RefusedError as refusal:
            if refusal.problem.status == 503:
                await asyncio.Event().wait()
            raise


class BelievesEveryWorker(RequestLife):
    """Tokens count from any worker."""

    def _current(self, worker: bytes, request: bytes, attempt: int) -> Run | None:
        run = self._runs.get(request)
        return run if run is not None and run.state is RunState.RUNNING and run.attempt == attempt else None


class LivesByItsWorkers(Lookups):
    """Liveness looks at the workers: the gateway is restarted for what it cannot help."""

    async def live(self, request: web.BaseRequest, tenant: Any) -> web.StreamResponse:
        return await self.routable(request, tenant)


class SaysThatNobodyServes(Lookups):
    """Never routable, with any workers linked."""

    async def routable(self, request: web.BaseRequest, tenant: Any) -> web.StreamResponse:
        return web.Response(status=503)


@dataclass(frozen=True, slots=True)
class ChaosMutant(Mutant):
    """One that shows in worlds of three tenants."""

    weather: Weather = Weather.CALM

    def world(self, seed: int) -> ChaosWorld:
        return ChaosWorld(self.scenario(seed), self.built())

    def scenario(self, seed: int) -> ChaosScenario:
        return chaos_scenario(seed, self.weather)


NEIGHBOURS = (
    ChaosMutant("tenants", KnowsNoTenants, ("admission",), first=4),
    ChaosMutant("tenants", PredictsForEverybody, ("loads",), first=1),
    ChaosMutant("hang-ups", KeepsTurnsOfTheGone, ("templates",), first=9),
    ChaosMutant("helper processes", WaitsWithoutProcess, ("templates",), weather=Weather.APART, first=1),
    ChaosMutant("lies", BelievesEveryWorker, ("life",), weather=Weather.LIES),
    ChaosMutant("probes", LivesByItsWorkers, ("lookups",), weather=Weather.STORM, first=1),
    ChaosMutant("probes", SaysThatNobodyServes, ("lookups",)),
)
"""Defects of the parts that isolate tenants."""
