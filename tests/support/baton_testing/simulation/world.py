"""One seeded world: gateways, prefill and decode workers, the network between them, faults, the check at rest."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from baton_decode_worker.service import DecodeService
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.scheduler import Scheduler
from baton_flexible_worker.service import FlexibleService
from baton_gateway.http_api.lookups import Lookups
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.model_loads import ModelLoads
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.routing import Routing
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.retargeting import PrefillKeeper
from baton_prefill_worker.service import PrefillService
from baton_testing.engine.runners import ToyRunner
from baton_testing.kv_transfer.builders import fingerprint
from baton_testing.simulation.clients import SimClient, client
from baton_testing.simulation.decode import SimDecode
from baton_testing.simulation.faults import inject
from baton_testing.simulation.flexible import SimFlexible
from baton_testing.simulation.gateway import SimGateway
from baton_testing.simulation.network import PULSE_S, Connection, Path
from baton_testing.simulation.prefill import SimPrefill
from baton_testing.simulation.process import RAISED, SimProcess, Violation, require
from baton_testing.simulation.scenario import FAULTS_UNTIL_S, Fault, FaultPlan, RequestPlan, Scenario
from baton_testing.simulation.streams import Stream
from baton_testing.simulation.worker import SimWorker
from baton_testing.virtual_time.event_heap import EventHeap
from baton_wire.fingerprint import require_fit as require_fit_pair
from baton_wire.liveness import Liveness
from baton_wire.messages.values import PairFingerprint, Reason, Role
from baton_wire.session import Session
from baton_worker.serving.endpoints import STALLED_S, is_live

GENTLE = frozenset({Fault.CANCEL, Fault.MASS_CANCEL, Fault.CHANGE_ROLE})
"""Faults that touch no machine: with only these, everything must go fast and well."""
REST_S = 45.0
"""By then everything must have ended: deadlines, detection, pins and closing added up."""
EXPLAINED = frozenset({"deadline_exceeded", "no_capacity", "queue_timeout", "queue_full", "context_length_exceeded"})
"""Problems that need no fault: the request's own time, or a full fleet."""


FINGERPRINT = fingerprint()


@dataclass(frozen=True, slots=True)
class Parts:
    """The production machines; a faulty variant replaces one machine."""

    prefill_service: Any = PrefillService
    decode_service: Any = DecodeService
    flexible_service: Any = FlexibleService
    prefill_scheduler: Any = Scheduler
    decode_scheduler: Any = Scheduler
    stepper: Any = Stepper
    runner: Any = ToyRunner
    prefill_handovers: Any = PrefillHandovers
    decode_handovers: Any = DecodeHandovers
    keeper: Any = PrefillKeeper
    life: Any = RequestLife
    routing: Any = Routing
    liveness: Any = Liveness
    link: Any = PairLink
    session: Any = Session
    admission: Any = Admission
    require_fit: Any = require_fit_pair
    is_live: Any = is_live
    fingerprint: PairFingerprint = FINGERPRINT
    templates: Any = TemplateRenderer
    loads: Any = ModelLoads
    lookups: Any = Lookups


class SimWorld:
    """Build it from a scenario, `run` it. Raises Violation."""

    gateway_class: type[SimGateway] = SimGateway

    def __init__(self, scenario: Scenario, parts: Parts | None = None) -> None:
        RAISED.clear()
        self.scenario, self.parts = scenario, parts or Parts()
        self.shape = scenario.shape
        self.message_s = scenario.shape.message_s
        self.heap = EventHeap(scenario.seed)
        self.touched: dict[SimProcess, None] = {}
        self.connections: list[Connection] = []
        self.streams: list[Stream] = []
        self.faults: Counter[enum.StrEnum] = Counter()
        self.retargets = 0
        self.placed: Counter[str] = Counter()
        self.flips = 0
        """The number of the last order that a worker change its role."""
        self.make_liveness: Callable[..., Liveness] = self.parts.liveness
        self.make_session: Callable[..., Session] = self.parts.session
        self.gateways: list[SimGateway] = []
        self.workers: dict[str, SimWorker] = {}
        """By address: who answers there, or did last."""
        self.by_epoch: dict[bytes, SimWorker] = {}
        self.paths: dict[tuple[str, str], Path] = {}
        self.clients: list[SimClient] = []
        self._born = 0
        self._served_by: dict[int, SimGateway] = {}
        self._begin()

    # Randomness -------------------------------------------------------------------------------------------------------

    def delay(self, most_s: float) -> float:
        return self.heap.random.random() ** 2 * most_s

    def chance(self, share: float) -> bool:
        return self.heap.random.random() < share

    def count(self, fault: enum.StrEnum) -> None:
        self.faults[fault] += 1

    # Fleet ------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        shape = self.shape
        for number in range(shape.decodes + shape.skewed):
            self.start_worker(Role.DECODE, f"d{number}", number >= shape.decodes)
        for number in range(shape.prefills + shape.skewed):
            self.start_worker(Role.PREFILL, f"p{number}", number >= shape.prefills)
        for number in range(shape.gateways):
            self.start_gateway(f"g{number}")
        for plan in self.scenario.requests:
            mine = self._client(plan)
            self.clients.append(mine)
            self.heap.after(plan.at_s, lambda mine=mine: self._arrive(mine))  # type: ignore[misc]
        for fault in self.scenario.faults:
            self.heap.after(fault.at_s, lambda fault=fault: self._inject(fault))  # type: ignore[misc]
        self.heap.after(PULSE_S, self._pulse)

    def epoch(self) -> bytes:
        self._born += 1
        return hashlib.blake2b(self._born.to_bytes(4), digest_size=14).digest() + self._born.to_bytes(2)

    def start_worker(self, role: Role, address: str, is_skewed: bool) -> None:
        epoch = self.epoch()
        print_ = fingerprint(model_hash="e" * 64) if is_skewed else self.parts.fingerprint
        name = f"{address.upper()}.{self._born}"
        worker: SimWorker
        if self.shape.flexible:
            worker = SimFlexible(self, name, epoch, address, print_, role)
        else:
            worker = (SimPrefill if role is Role.PREFILL else SimDecode)(self, name, epoch, address, print_)
        known = self.workers.get(address)
        self.workers[address] = self.by_epoch[epoch] = worker
        self.heap.note(f"{worker.name} starts")
        decodes = [other for other in self.workers if self.shape.flexible or other.startswith("d")]
        for prefill in [other for other in self.workers.values() if isinstance(other, SimPrefill)]:
            for decode in decodes:
                if decode != prefill.address:
                    self.path(prefill.address, decode)
            if prefill.is_alive and (prefill is worker or known is None):
                prefill.discovered(decodes)

    def start_gateway(self, address: str) -> None:
        gateway = self.gateway_class(self, f"{address.upper()}.{self._born}", self.epoch(), address)
        self.gateways = [other for other in self.gateways if other.address != address] + [gateway]
        self.heap.note(f"{gateway.name} starts")
        for worker in self.workers:
            gateway.dial(worker, self.path(address, worker))

    def path(self, one: str, other: str) -> Path:
        return self.paths.setdefault((one, other), Path(f"{one}-{other}"))

    def path_of(self, epoch: bytes, address: str) -> Path:
        """From the worker of this epoch."""
        return self.path(self.by_epoch[epoch].address, address)

    def is_reported(self, key: HandoverKey) -> bool:
        """Return whether the client has the first token of every choice of this attempt."""
        return any(gateway.is_reported(key) for gateway in self.gateways)

    def process_at(self, address: str) -> SimProcess | None:
        worker = self.workers.get(address)
        return worker if worker is not None and worker.is_alive else None

    def kill(self, victim: SimProcess) -> None:
        self.heap.note(f"{victim.name} is killed")
        victim.is_alive = False
        for connection in list(self.connections):
            connection.died(victim)
        for stream in [open_stream for open_stream in self.streams if open_stream.process is victim]:
            stream.close()
        victim.die()
        if isinstance(victim, SimDecode):
            victim.landing.is_gone = True
        if isinstance(victim, SimPrefill):
            self.heap.after(1.0 + self.delay(3.0), lambda: self._prove_gone(victim.epoch))
        if isinstance(victim, SimGateway):
            for mine in self.clients:
                mine.is_gone = mine.is_gone or self._served_by.get(mine.plan.number) is victim

    def _prove_gone(self, epoch: bytes) -> None:
        for worker in list(self.workers.values()):
            if isinstance(worker, SimDecode):
                worker.proven_gone(epoch)

    def heal(self, path: Path) -> None:
        for call in path.heal():
            self.heap.after(0.001, call)

    def _inject(self, fault: FaultPlan) -> None:
        inject(self, fault)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _client(self, plan: RequestPlan) -> SimClient:
        return client(plan)

    def _arrive(self, mine: SimClient) -> None:
        gateway = self.gateways[int(mine.plan.gateway * len(self.gateways))]
        if not gateway.is_alive:
            mine.is_gone = True
            return
        self.heap.note(f"request {mine.plan.number} arrives at {gateway.name}")
        self._served_by[mine.plan.number] = gateway
        gateway.run(lambda: gateway.start(mine))
        if mine.plan.cancel_after_s is not None:
            gateway.later(mine.plan.cancel_after_s, lambda: self._hang_up(gateway, mine))

    def _hang_up(self, gateway: SimGateway, mine: SimClient) -> None:
        if mine.ending is None:
            self.count(Fault.CANCEL)
            gateway.client_gone(mine)

    def ended(self, mine: SimClient, used: set[bytes]) -> None:
        """I9: who met no fault fails only for what needs none."""
        end = mine.ending
        assert end is not None
        if end.problem is None or end.problem.code in EXPLAINED or end.problem.code == "shutting_down":
            return
        met = any(self.by_epoch[epoch].is_faulted for epoch in used)
        nobody = end.problem.code == "no_routable_workers" and bool(self.scenario.faults)
        require(met or nobody, "I9", f"request {mine.plan.number} failed with {end.problem} and met no fault")

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self) -> SimWorld:
        try:
            while self.heap.now < REST_S and not self._is_at_rest():
                self.heap.run(self.heap.now + 1.0, self._after_each)
            self.check_at_rest()
        except Violation:
            raise RAISED[0] from None  # what came of it when production code caught it is of no interest
        finally:
            for process in self._processes():
                process.die()
        return self

    @property
    def _last_end_s(self) -> float:
        return max((mine.ended_s for mine in self.clients), default=0.0)

    def _after_each(self) -> None:
        if RAISED:
            raise RAISED[0]
        for process in self.touched:
            if process.is_alive:
                process.check()
        self.touched.clear()

    def _pulse(self) -> None:
        self.connections = [connection for connection in self.connections if not connection.is_over]
        self.streams = [stream for stream in self.streams if stream.is_up]
        for worker in self.workers.values():
            if worker.is_running:
                for watch in worker.watches:
                    watch.check()
        for connection in list(self.connections):
            connection.pulse()
        self.heap.after(PULSE_S, self._pulse)

    def _is_at_rest(self) -> bool:
        if self.heap.now < FAULTS_UNTIL_S + 1.0 or any(
            client.ending is None and not client.is_gone for client in self.clients
        ):
            return False
        if any(path.is_cut for path in self.paths.values()) or any(process.is_paused for process in self._processes()):
            return False
        return all(process.leftovers() is None for process in self._processes()) and not self._mistaken()

    def _processes(self) -> list[SimProcess]:
        return [process for process in (*self.gateways, *self.workers.values()) if process.is_alive]

    def check_at_rest(self) -> None:
        for mine in self.clients:
            require(mine.ending is not None or mine.is_gone, "I1", f"request {mine.plan.number} never ended")
        for process in self._processes():
            left = process.leftovers()
            require(left is None, "I2", f"held at rest: {left}")
        self._check_health()
        self._check_roles()
        kinds = {fault.kind for fault in self.scenario.faults}
        if kinds <= GENTLE:
            self._check_calm()
        elif kinds <= GENTLE | {Fault.DRAIN}:
            self._check_drained()

    def _check_health(self) -> None:
        """I9: health is a recent turn of the engine's loop, not a process that answers."""
        for worker in self.workers.values():
            if isinstance(worker, SimPrefill | SimDecode) and worker.is_alive:
                snapshot = worker.engine.snapshot
                dead_s = snapshot.turned_s + STALLED_S + 1.0
                require(not self.parts.is_live(snapshot, dead_s), "I9", f"{worker.name}: healthy without a turn")

    def _check_roles(self) -> None:
        """I15: gateways take each worker for what it is."""
        mistaken = self._mistaken()
        require(not mistaken, "I15", ", ".join(mistaken))

    def _mistaken(self) -> list[str]:
        return [
            f"{gateway.name} takes {self.by_epoch[linked.hello.epoch].name} for a {linked.role} worker"
            for gateway in self.gateways
            for linked in gateway.table.all()
            if gateway.is_alive and linked.role is not self.by_epoch[linked.hello.epoch].role
        ]

    def _check_drained(self) -> None:
        """I7: where workers only leave in order, no answer is cut, unless no other worker is left."""
        for mine in self.clients:
            if mine.ending is None or mine.ending.problem is None:
                continue
            explained = mine.ending.problem.code in EXPLAINED | {"no_routable_workers"}
            require(explained, "I7", f"request {mine.plan.number} was cut by a drain: {mine.ending.problem.code}")

    def _check_calm(self) -> None:
        """I8: without faults everybody is served, unless its time or the fleet's room is short."""
        for gateway in self.gateways:
            refused = {Reason.BAD_REQUEST, Reason.DRAINING} & gateway.failures.keys()
            require(not refused, "I15", f"workers refused what {gateway.name} sent: {refused}")
        rest_s = self.heap.now - max(self._last_end_s, FAULTS_UNTIL_S)
        require(rest_s <= 3.5, "I2", f"blocks were held for {rest_s:.1f} s after the last request")
        for mine in self.clients:
            end = mine.ending
            if mine.is_gone or end is None or end.outcome is Outcome.FINISHED or mine.plan.cancel_after_s is not None:
                continue
            code = None if end.problem is None else end.problem.code
            explained = code in EXPLAINED and (code != "deadline_exceeded" or mine.plan.limit_s < 5.0)
            require(explained, "I8", f"request {mine.plan.number} ended with {end} in a calm world")

    @property
    def trace_hash(self) -> str:
        return hashlib.blake2b("\n".join(self.heap.trace).encode(), digest_size=16).hexdigest()


__all__ = ["Parts", "SimWorld", "Violation"]
