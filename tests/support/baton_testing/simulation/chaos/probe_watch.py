"""Probes that lie: what the production handlers answer, held against what the world knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from baton_testing.simulation.chaos.gateway import ChaosGateway
from baton_testing.simulation.process import require
from baton_testing.simulation.worker import SimWorker
from baton_wire.messages.values import Role

if TYPE_CHECKING:
    from baton_testing.simulation.chaos.world import ChaosWorld

LATE_S = 3.5
"""By then a death is noticed, and a restarted worker is linked and announced."""


@dataclass(slots=True)
class _Since:
    is_served: bool
    since_s: float


class ProbeWatch:
    """I19. Of each gateway: since when workers could serve it, and what its probes say."""

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world
        self.asked = 0
        """Answers that were held against what the world knows."""
        self._since: dict[ChaosGateway, _Since] = {}

    def look(self) -> None:
        for gateway in cast(list[ChaosGateway], self._world.gateways):
            if gateway.is_running:
                self._look_at(gateway)
            else:
                self._since.pop(gateway, None)

    def _look_at(self, gateway: ChaosGateway) -> None:
        now = self._world.heap.now
        self.asked += 1
        require(gateway.status("live") == 200, "I19", f"{gateway.name} serves, and /health/live says no")
        says = gateway.status("routable") == 200
        is_served = self._is_served(gateway)
        known = self._since.get(gateway)
        if is_served is None or known is None or known.is_served != is_served:
            if is_served is None:
                self._since.pop(gateway, None)
            else:
                self._since[gateway] = _Since(is_served, now)
            return
        if now - known.since_s > LATE_S:
            self.asked += 1
            for_s = now - known.since_s
            text = f"{gateway.name}: /health/routable says {says}, and for {for_s:.1f} s workers were {is_served}"
            require(says == is_served, "I19", text)

    def _is_served(self, gateway: ChaosGateway) -> bool | None:
        """Return whether some pair of workers lives and can be reached; None: unknown."""
        world = self._world
        if world.heap.now < world.lied_s + LATE_S:
            return None
        there: dict[object, set[Role]] = {}
        for worker in world.workers.values():
            state = self._state_of(gateway, worker)
            if state is None:
                return None
            if state:
                there.setdefault(worker.fingerprint, set()).add(worker.role)
        is_pair = any(len(roles) == 2 for roles in there.values())
        if not is_pair and there and (world.shape.local or world.shape.keeps_answers or world.shape.flexible):
            return None
        return is_pair

    def _state_of(self, gateway: ChaosGateway, worker: SimWorker) -> bool | None:
        """Return whether a worker can be reached and takes work; None: the path to it is neither good nor cut."""
        path = self._world.path(gateway.address, worker.address)
        if path.is_cut and not (path.out_cut and path.back_cut):
            return None
        if path.slow_s:
            return None
        return worker.is_running and not path.is_cut and not worker.service.draining
