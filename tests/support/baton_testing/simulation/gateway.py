"""A simulated gateway: the production relay with admission, routing, text and held runs, on a loop of its own.

Played are HTTP and the links to the workers. Its clients know what they must get: every piece of text is compared at
once with the request computed alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any, Protocol, cast

from prometheus_client import CollectorRegistry

from baton_gateway.errors import GatewayError, Problem, RefusedError
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.live_request import LiveRequest, RelayRules
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import End, LifeRules, PickRoute, Routed
from baton_gateway.requests.run import Run, RunState
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.structured_outputs.output_format import OutputFormat
from baton_gateway.text.revision_text import Pieces, Shown, TextModel
from baton_gateway.text.token_pieces import DecoderKind, LeadingSpace, Piece, PieceTable
from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_gateway.workers.outbox import ToWorker
from baton_gateway.workers.route import Route, RoutePolicy
from baton_kv_transfer.handover import HandoverKey
from baton_testing.engine import toy_grammars
from baton_testing.engine.runners import VOCABULARY
from baton_testing.engine.toy_grammars import letter
from baton_testing.simulation.clients import SimClient
from baton_testing.simulation.legs import OpenLegs
from baton_testing.simulation.network import Connection, Dial, Path
from baton_testing.simulation.network import End as LinkEnd
from baton_testing.simulation.process import SimProcess, require
from baton_testing.simulation.swayed_table import SwayedTable
from baton_testing.simulation.worker import SimWorker, WorkerWorld
from baton_wire.liveness import PeerState
from baton_wire.messages import codec
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    CachedPlaces,
    Flip,
    Hello,
    Holding,
    LegFailed,
    ToGateway,
    Tokens,
)
from baton_wire.messages.gateway_link import WorkerState as WorkerStateMessage
from baton_wire.messages.values import PLACE_BYTES, Address, Grammar, Reason, Role
from baton_wire.rules.prompt_placement import LatencyTargets

LIMITS = AdmissionLimits(max_running=6, max_queued=32, max_wait_s=6.0)
RULES = RelayRules(LifeRules(reroute_wait_s=8.0, park_s=2.0), generation_defaults=False)
TTFT_S = 0.5
PULSE_S = 0.25
SHAPE_S = 0.003
METRICS = GatewayMetrics(CollectorRegistry())
"""The metrics of all gateways: making them takes longer than a request, and no test reads them."""


def _text_model() -> TextModel:
    pieces = {token: Piece(letter(token).encode()) for token in range(VOCABULARY)}
    table = PieceTable(lambda token: None, DecoderKind.BYTE_LEVEL, LeadingSpace.KEEP, False, frozenset(), pieces)
    return TextModel(cast(Any, None), cast(Any, None), (), dict.fromkeys(Shown, Pieces(frozenset(), table)), None)


TEXT = _text_model()


class SimShapes:
    """Compiles what a client asks for: outside the loop, as the production one does in a process of its own."""

    async def compile(self, shape: OutputFormat, tenant: str, unenforced: object) -> Grammar:
        await asyncio.sleep(SHAPE_S)
        return toy_grammars.grammar(shape.source)


def check_tiling(record: RequestRecord, took_s: float | None = None) -> None:
    """Raises AssertionError unless the record's spans tile its duration exactly. `took_s`: as its client saw it; None:
    not known."""
    cursor = 0
    for span in record.spans:
        assert (span.start_ns, span.duration_ns > 0) == (cursor, True), record
        cursor += span.duration_ns
    assert cursor == record.duration_ns, record
    assert took_s is None or cursor == round(took_s * 1e9), (took_s, record)


class SimRelay(Relay):
    """The production relay, and what it does with a request is watched."""

    gateway: SimGateway

    def _new_life(self, n: int, tenant: Tenant, now: float) -> RequestLife:
        rules, make, budget = self._rules, self.gateway.world.parts.life, self._budgets.of(tenant.name)
        life: RequestLife = make(self._dice.randbytes(16), n, now + rules.max_duration_s, rules.life, budget, now)
        return life

    def _routed(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> Any:
        event = super()._routed(live, action, route)
        self.gateway.routed(live, action, event.route if isinstance(event, Routed) else event.problem)
        return event

    def _problem(self, error: BaseException, field: str | None = None) -> Problem:
        """Raise unforeseen errors: they are findings, not answers."""
        if not isinstance(error, GatewayError):
            raise error
        return super()._problem(error, field)

    def _end(self, live: LiveRequest, action: End, now: float) -> None:
        self.gateway.ended(live, action)
        super()._end(live, action, now)
        if live.trail is not None:
            took_s = self._loop.time() - live.trail.began_s
            self.closed(live)
            check_tiling(next(self.records.latest()).record(), took_s)


class GatewayWorld(WorkerWorld, Protocol):
    placed: Counter[str]
    """Routes by where prompt and answer went."""

    def ended(self, mine: SimClient, used: set[bytes]) -> None: ...


class SimGateway(SimProcess):
    """Also the party of its worker connections."""

    relay_class: type[SimRelay] = SimRelay
    limits = LIMITS
    text = TEXT

    def __init__(self, world: GatewayWorld, name: str, epoch: bytes, address: str) -> None:
        super().__init__(world, name, epoch, address)
        self.world = world
        parts = world.parts
        shape = world.shape
        self.table = WorkerTable()
        if shape.tpot_s is not None:
            self.table = SwayedTable(shape.tpot_s, random.Random(world.heap.random.getrandbits(64)))
        self.admission = parts.admission(self.limits)
        targets = None if shape.tpot_s is None else LatencyTargets(TTFT_S, shape.tpot_s)
        self.rules = replace(RULES, route=RoutePolicy(decode_locally=shape.local, targets=targets))
        dice = random.Random(world.heap.random.getrandbits(64))
        with self.loop.entered():
            self.relay = self.relay_class(self.table, self.admission, cast(Any, None), METRICS, self.rules, dice)
        self.relay._routing = parts.routing(self.table, dice)
        self.relay.gateway = self
        self.relay.prompts.compiler = cast(Any, SimShapes())
        self.used: dict[int, set[bytes]] = {}
        """Workers of each request, by ticket."""
        self._ends: dict[bytes, LinkEnd] = {}
        self._dials: list[Dial] = []
        self.legs = OpenLegs()
        self.failures: Counter[Reason] = Counter()
        """Legs that failed at workers."""
        self._unlinked: dict[tuple[bytes, bytes], float] = {}
        self.later(PULSE_S, self._pulse)

    def dial(self, address: str, path: Path) -> None:
        self._dials.append(Dial(self, path, address, _accept, self, lambda peer: cast(SimWorker, peer)))

    # Clients ----------------------------------------------------------------------------------------------------------

    @property
    def open_clients(self) -> list[SimClient]:
        return [cast(SimClient, live.writer) for live in self.relay._by_ticket.values()]

    def start(self, client: SimClient) -> None:
        plan = client.plan
        tenant = Tenant(plan.tenant, plan.tenant) if plan.tenant else DEFAULT_TENANT
        self.relay.reconfigure(replace(self.rules, max_duration_s=plan.limit_s))
        try:
            self.relay.start(client.request(), tenant, client)
        except RefusedError as refusal:
            client.ended(End(Outcome.REFUSED, refusal.problem), self.now)

    def client_gone(self, client: SimClient) -> None:
        live = next((live for live in self.relay._by_ticket.values() if live.writer is client), None)
        if live is not None:
            client.is_gone = True
            self.relay.client_gone(live)

    # Workers ----------------------------------------------------------------------------------------------------------

    def received(self, end: LinkEnd, frame: bytes) -> None:
        message = codec.decode(frame, ToGateway)
        epoch = end.other.process.epoch
        match message:
            case Hello():
                self._linked(end, message)
            case WorkerStateMessage():
                self._reported(epoch, message)
            case CachedPlaces():
                if self.table.cached.take(epoch, message, self.now).asks:
                    end.send(codec.encode(AskCachedPlaces()))
            case Tokens():
                for entry in message.entries:
                    self.legs.arrived(epoch, entry)
                self.relay.tokens(epoch, message)
            case LegFailed():
                self.legs.failed(epoch, message.request, message.attempt)
                self.failures[message.reason] += 1
                self.note(f"leg {message.request.hex()[-4:]}/{message.attempt} failed: {message.reason}")
                self.relay.leg_failed(epoch, message)

    def _linked(self, end: LinkEnd, hello: Hello) -> None:
        def send(message: ToWorker) -> bool:
            is_sent = end.send(codec.encode(message))
            if is_sent and not isinstance(message, Flip | Holding | AskCachedPlaces | Encode):
                self.legs.sent(hello.epoch, message)
            return is_sent

        address = Address(host=end.other.process.address, port=1)
        if not self.table.add(LinkedWorker(hello, address, self.text, send, lambda: self.now)):
            end.close("this worker is linked already")
            return
        self._ends[hello.epoch] = end
        self.relay.worker_changed()

    def _reported(self, epoch: bytes, state: WorkerStateMessage) -> None:
        worker = self.table.get(epoch)
        if worker is None:
            return
        known, role = worker.state, worker.role
        worker.record_report(state)
        if known is None or known.draining != state.draining or worker.role is not role:
            self.relay.worker_changed()
        self.relay.worker_reported()

    def flip(self, epoch: bytes, number: int, role: Role) -> None:
        """An order has come."""
        worker = self.table.get(epoch)
        if worker is not None:
            worker.flip(number, role)

    def lost(self, end: LinkEnd, detail: str) -> None:
        epoch = end.other.process.epoch
        if self._ends.get(epoch) is not end:
            return
        del self._ends[epoch]
        self.table.remove(epoch)
        self.legs.lost(epoch)
        self.relay.worker_lost(epoch)

    def _pulse(self) -> None:
        for epoch, end in list(self._ends.items()):
            worker = self.table.get(epoch)
            is_suspect = end.look(self.now) is PeerState.SUSPECT
            if worker is not None and worker.is_suspect != is_suspect:
                worker.is_suspect = is_suspect
                self.relay.worker_changed()
        self.later(PULSE_S, self._pulse)

    def is_reported(self, key: HandoverKey) -> bool:
        live = self.relay._by_run.get(key.request)
        run = None if live is None else live.life._runs.get(key.request)
        if live is None or run is None or run.attempt != key.attempt:
            return False
        return all(len(live.life._choices[choice].ids) > run.base for choice in run.choices)

    # What the relay does ----------------------------------------------------------------------------------------------

    def routed(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> None:
        number = cast(SimClient, live.writer).plan.number
        if isinstance(route, Problem):
            self.note(f"no route for {action.run.hex()[-4:]}: {route.code}")
            return
        workers = [epoch for epoch in (route.prefill, route.decode) if epoch is not None]
        self.used.setdefault(live.ticket, set()).update(workers)
        for epoch in workers:
            worker = self.table.get(epoch)
            fits = worker is not None and worker.hello.fingerprint == live.fingerprint
            require(fits, "I6", f"request {number} is routed to another revision")
        view = next(worker for worker in self.table.views() if worker.epoch == route.decode)
        is_kept = view.keeps_answers and view.role is Role.PREFILL
        may_be_local = self.rules.route.decode_locally or self.rules.route.targets is not None
        is_local = route.prefill is None and not is_kept and not may_be_local
        require(not is_local, "I9", "a prefill was put on a decode worker against the policy")
        self.world.placed[_placement(route)] += 1
        names = " and ".join(self._ends[epoch].other.process.name for epoch in workers)
        self.note(f"run {action.run.hex()[-4:]} of request {number} to {names}")

    def ended(self, live: LiveRequest, action: End) -> None:
        if not self.is_alive:  # a timer that fell due while it was paused runs when it is buried
            return
        client = cast(SimClient, live.writer)
        problem = "" if action.problem is None else action.problem.code
        self.note(f"request {client.plan.number} ended: {action.outcome} {problem}")
        client.ended(action, self.now)
        self.legs.require_none(live.run_ids)
        self.world.ended(client, self.used.pop(live.ticket, set()))

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        held = {action.run for _, action in self.relay.held}
        for live in self.relay._by_ticket.values():
            late_s = self.now - live.life.deadline_s
            number = cast(SimClient, live.writer).plan.number
            for run in live.life._runs.values():
                is_nobodys = run.state is RunState.ROUTING and run.request not in held
                require(not is_nobodys, "I3", f"{run.request.hex()[-6:]}: no worker has this run")
                self._check_linked(number, run)
            require(late_s < 1.0, "I3", f"request {number} is {late_s:.1f} s beyond its deadline")

    def _check_linked(self, number: int, run: Run) -> None:
        place = run.request, run.decode
        if run.state is not RunState.RUNNING or self.table.get(run.decode) is not None:
            self._unlinked.pop(place, None)
            return
        lost_s = self.now - self._unlinked.setdefault(place, self.now)
        require(lost_s < 0.5, "I3", f"request {number} waits for a worker that is lost")

    def leftovers(self) -> str | None:
        relay, running = self.relay, self.admission.num_running
        if relay._by_ticket or relay._by_run or running or self.admission.num_waiting:
            numbers = [client.plan.number for client in self.open_clients]
            return f"{self.name}: requests {numbers}, runs {len(relay._by_run)}, running {running}"
        return self._unequal_places()

    def _unequal_places(self) -> str | None:
        """The worker whose cache this gateway knows otherwise than the worker announced it."""
        for epoch, end in self._ends.items():
            worker, known = cast(SimWorker, end.other.process), self.table.cached.places(epoch)
            announced = worker.places.announce_all()
            names = b"".join(message.added for message in announced)
            are_all_known = all(
                epoch in self.table.cached.longest(names[at : at + PLACE_BYTES])
                for at in range(0, len(names), PLACE_BYTES)
            )
            if known is not None and (known * PLACE_BYTES != len(names) or not are_all_known):
                return f"{self.name} knows {known} places of {worker.name}, which announced {len(names) // PLACE_BYTES}"
        return None


def _placement(route: Route) -> str:
    if route.is_prefill_local:
        return "prefill local"
    return "decode local" if route.is_decode_local else "disaggregated"


def _accept(peer: SimProcess, connection: Connection) -> None:
    cast(SimWorker, peer).accept_gateway(connection)
