"""A world of three tenants: one that keeps within its share, one at its quota with a long line, one hostile. What must
hold for the first holds whatever the others do and whatever fails.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from baton_gateway.reporting.outcome import Outcome
from baton_testing.simulation.chaos.gateway import ChaosClient, ChaosGateway
from baton_testing.simulation.chaos.lies import LIES_S, ReportedStates, lie
from baton_testing.simulation.chaos.plan import (
    APART,
    LIES,
    Await,
    ChaosFault,
    ChaosPlan,
    ChaosScenario,
    Neighbour,
    Weather,
)
from baton_testing.simulation.chaos.probe_watch import ProbeWatch
from baton_testing.simulation.chaos.simulated_helpers import LATE_S, helpers_are_simulated
from baton_testing.simulation.clients import SimClient
from baton_testing.simulation.process import require
from baton_testing.simulation.scenario import FaultPlan, RequestPlan, Scenario
from baton_testing.simulation.worker import SimWorker
from baton_testing.simulation.world import GENTLE, Parts, SimWorld
from baton_wire.messages.values import Role

REFUSES_S = 1.5
"""How long a gateway can start no process at most."""
APART_S = 5.0
"""How long after a fault of a helper process a missing answer is explained by it."""
UNPREPARED = frozenset(
    {"template_failed", "template_unavailable", "tokenizer_unavailable", "grammars_unavailable", "invalid_grammar"}
)
ANSWERED_S = 2.5
"""From its arrival to the first text of an innocent request where no machine fails, whatever the others bring."""
CROWDED = frozenset({"overloaded", "queue_timeout", "no_capacity", "deadline_exceeded", "out_of_memory"})
"""Codes that a tenant within its share gets only where machines fail."""


class ChaosWorld(SimWorld):
    """Build it from a `ChaosScenario`, `run` it. Raises Violation."""

    gateway_class = ChaosGateway
    scenario: ChaosScenario

    def __init__(self, scenario: ChaosScenario, parts: Parts | None = None) -> None:
        self.hang_ups: Counter[Await] = Counter()
        self.overtaken = 0
        self.liars: set[bytes] = set()
        self.lied_s = -1e9
        """When a worker lied last, though it may go on for a while."""
        self._states: dict[SimWorker, ReportedStates] = {}
        self._gateways_by_loop: dict[Any, ChaosGateway] = {}
        self._faulty_s: float | None = None
        super().__init__(scenario, parts)
        self.probes = ProbeWatch(self)

    # Fleet ------------------------------------------------------------------------------------------------------------

    def start_worker(self, role: Role, address: str, is_skewed: bool) -> None:
        super().start_worker(role, address, is_skewed)
        worker = self.workers[address]
        self._states[worker] = ReportedStates(worker)

    def start_gateway(self, address: str) -> None:
        super().start_gateway(address)
        gateway = cast(ChaosGateway, self.gateways[-1])
        self._gateways_by_loop[gateway.loop] = gateway

    @property
    def has_faulty_machines(self) -> bool:
        return self._faulty_s is not None

    # Faults -----------------------------------------------------------------------------------------------------------

    def _inject(self, fault: FaultPlan) -> None:
        if fault.kind in APART:
            self._fail_helper(fault)
        elif fault.kind in LIES:
            self._lie(fault)
        else:
            if fault.kind not in GENTLE and self._faulty_s is None:
                self._faulty_s = self.heap.now
            super()._inject(fault)

    def _fail_helper(self, fault: FaultPlan) -> None:
        alive = [cast(ChaosGateway, gateway) for gateway in self.gateways if gateway.is_running]
        if not alive:
            return
        gateway = alive[int(fault.pick * len(alive))]
        room, amount = gateway.helpers, fault.amount
        match fault.kind:
            case ChaosFault.KILL_HELPER:
                room.kill(amount)
            case ChaosFault.WEDGE_HELPER:
                room.wedge_next = True
            case ChaosFault.DELAY_HELPER:
                room.delay_next_s = 0.1 + amount * LATE_S
            case ChaosFault.MUTE_HELPER:
                room.mute_next = True
                room.kill(amount)
            case ChaosFault.REFUSE_HELPER | ChaosFault.NO_DESCRIPTORS:
                room.refusal = cast(ChaosFault, fault.kind)
                room.refuses_until_s = self.heap.now + amount * REFUSES_S
                room.kill(amount)

    def _lie(self, fault: FaultPlan) -> None:
        able = [worker for worker in self.workers.values() if worker.is_running]
        if not able:
            return
        liar = able[int(fault.pick * len(able))]
        known = liar.epoch in self.liars
        self.liars.add(liar.epoch)
        if lie(liar, self._states[liar], fault):
            self.count(fault.kind)
            self.lied_s = self.heap.now + LIES_S
            liar.is_faulted = True
            liar.note(f"lies: {fault.kind}")
        elif not known:
            self.liars.discard(liar.epoch)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _client(self, plan: RequestPlan) -> SimClient:
        assert isinstance(plan, ChaosPlan)
        tenant = self.scenario.tenant(plan.neighbour)
        return ChaosClient(plan, (), [""] * plan.n, [""] * plan.n, tenant=tenant, now=lambda: self.heap.now)

    def ended(self, mine: SimClient, used: set[bytes]) -> None:
        """I9, and I16: nothing that others do costs the innocent tenant a request."""
        client = cast(ChaosClient, mine)
        end = client.ending
        assert end is not None
        if end.problem is None:
            self._check_wait(client)
            return
        code = end.problem.code or ""
        if client.is_innocent:
            self._check_innocent(client, code)
        if code in UNPREPARED or end.problem.param in ("structured_outputs", "guided_regex"):
            require(self._failed_helper(client), "I9", f"{client.name} ended with {code}, and its processes were well")
            return
        if code in CROWDED or code == "queue_full" or end.problem.status == 400 or client.is_lied_to:
            return
        if code == "no_routable_workers":
            require(self.has_faulty_machines or bool(self.liars), "I9", f"{client.name} found no workers")
            return
        super().ended(mine, used)

    def _check_innocent(self, client: ChaosClient, code: str) -> None:
        excused = self.has_faulty_machines or bool(self.liars) or client.is_lied_to
        require(code != "queue_full", "I16", f"{client.name} found the queue full of others")
        require(code not in CROWDED or excused, "I16", f"{client.name} ended with {code} for what others brought")

    def _check_wait(self, client: ChaosClient) -> None:
        is_calm = self.scenario.weather is Weather.CALM and client.is_innocent and client.answered_s is not None
        if is_calm and client.ending is not None and client.ending.outcome is Outcome.FINISHED:
            waited_s = cast(float, client.answered_s) - client.arrived_s
            require(waited_s <= ANSWERED_S, "I16", f"{client.name} waited {waited_s:.1f} s for its first text")

    def _failed_helper(self, client: ChaosClient) -> bool:
        """Return whether a helper process of a gateway failed while the client waited, or shortly before."""
        since_s = client.arrived_s - APART_S
        return any(cast(ChaosGateway, gateway).helpers.failed_s >= since_s for gateway in self.gateways)

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self) -> ChaosWorld:
        with helpers_are_simulated(lambda loop: self._gateways_by_loop[loop].helpers, lambda: self.heap.now):
            super().run()
        return self

    def _pulse(self) -> None:
        super()._pulse()
        self.probes.look()

    def _check_calm(self) -> None:
        """I8: in a calm world the innocent tenant is served."""
        for mine in cast(list[ChaosClient], self.clients):
            if mine.is_innocent and mine.plan.hang_up is None:
                is_served = mine.ending is not None and mine.ending.outcome is Outcome.FINISHED
                require(is_served, "I8", f"{mine.name} ended with {mine.ending} in a calm world")

    def outcomes(self) -> Counter[tuple[Neighbour, str]]:
        """Outcomes of requests, by tenant."""
        ends: Counter[tuple[Neighbour, str]] = Counter()
        for client in cast(list[ChaosClient], self.clients):
            end = client.ending
            code = "gateway killed" if end is None else end.outcome.value if end.problem is None else end.problem.code
            ends[client.plan.neighbour, str(code)] += 1
        return ends


def chaos_world(scenario: Scenario) -> ChaosWorld:
    """For what takes worlds of any kind."""
    assert isinstance(scenario, ChaosScenario)
    return ChaosWorld(scenario)
