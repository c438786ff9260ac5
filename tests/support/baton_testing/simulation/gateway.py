"""A simulated gateway: the production life of a request, admission, routing and retry budget; `relay` without text.

And its clients, who know what they must get: every delivered token is compared at once with the request computed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from baton_gateway.errors import Problem, queue_timeout, shutting_down
from baton_gateway.http_api.tenants import Tenant
from baton_gateway.requests.admission import Admission, AdmissionLimits, Verdict
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Admitted,
    Arrived,
    ClientGone,
    Deliver,
    End,
    Event,
    LegEnded,
    LifeRules,
    NoRoute,
    Outcome,
    PickRoute,
    Prepare,
    Prepared,
    Prompt,
    Refused,
    Routed,
    RoutesChanged,
    Send,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_gateway.requests.retry_budget import RetryBudget
from baton_gateway.requests.run import Run, RunState
from baton_gateway.workers.affinity import PrefixAffinity, prefix_keys
from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_gateway.workers.route import RoutePolicy, RouteQuery, revisions
from baton_testing.engine.runners import reference_tokens
from baton_testing.simulation.legs import OpenLegs
from baton_testing.simulation.network import Connection, Dial, Path
from baton_testing.simulation.network import End as LinkEnd
from baton_testing.simulation.process import SimProcess, require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, RequestPlan
from baton_testing.simulation.worker import SERVED, SimWorker, WorkerWorld
from baton_wire.liveness import PeerState
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import (
    Cancel,
    Hello,
    LegFailed,
    Prefill,
    Reserve,
    ToGateway,
    Tokens,
    WorkerState,
)
from baton_wire.messages.values import Address, Finish, PairFingerprint

LIMITS = AdmissionLimits(max_running=6, max_queued=32, max_wait_s=6.0)
RULES = LifeRules(reroute_wait_s=8.0, park_s=2.0)


@dataclass(slots=True, eq=False)
class SimClient:
    """One client connection: what it asked, what it got, how it ended."""

    plan: RequestPlan
    expected: list[list[int]]
    got: list[list[int]]
    finishes: dict[int, Finish] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    end: End | None = None
    ended_s: float = 0.0
    is_gone: bool = False
    """It hung up, or its gateway was killed."""

    def deliver(self, action: Deliver) -> None:
        choice, so_far = action.choice, self.got[action.choice]
        require(self.end is None, "I1", f"request {self.plan.number}: tokens after the end")
        require(choice not in self.finishes, "I7", f"request {self.plan.number}: tokens after finish of {choice}")
        require(action.is_first == (not so_far), "I7", f"request {self.plan.number}: first tokens twice")
        so_far += action.ids
        must = self.expected[choice]
        right = so_far == must[: len(so_far)]
        require(right, "I4", f"request {self.plan.number} choice {choice}: got {so_far}, expected {must}")
        if action.finish is not None:
            self.finishes[choice] = action.finish
            require(len(so_far) == len(must), "I7", f"request {self.plan.number}: finished after {len(so_far)} tokens")

    def ended(self, action: End, now: float) -> None:
        require(self.end is None, "I1", f"request {self.plan.number} ended twice: {self.end}, {action}")
        self.end, self.ended_s = action, now
        if action.outcome is Outcome.FINISHED:
            missing = set(range(self.plan.n)) - set(self.finishes) - self.stopped
            require(not missing, "I1", f"request {self.plan.number} finished without the ends of {missing}")


def client(plan: RequestPlan) -> SimClient:
    sampling = plan.sampling
    ids = range(plan.n)
    expected = [reference_tokens(plan.tokens, len(plan.tokens), sampling, i, CONTEXT_TOKENS) for i in ids]
    return SimClient(plan, expected, [[] for _ in ids])


@dataclass(slots=True, eq=False)
class LiveRequest:
    life: RequestLife
    client: SimClient
    ticket: int
    run_ids: tuple[bytes, ...] = ()
    prefix: tuple[bytes, ...] = ()
    fingerprint: PairFingerprint | None = None
    timer_s: float | None = None
    used: set[bytes] = field(default_factory=set)


class SimGateway(SimProcess):
    """Also the party of its worker connections."""

    def __init__(self, world: WorkerWorld, name: str, epoch: bytes, address: str) -> None:
        super().__init__(world, name, epoch, address)
        self.world = world
        self.table = WorkerTable()
        self.admission = Admission(LIMITS)
        self.budget = RetryBudget()
        self.affinity = PrefixAffinity()
        self.policy = RoutePolicy(decode_locally=world.shape.local)
        self.by_ticket: dict[int, LiveRequest] = {}
        self.by_run: dict[bytes, LiveRequest] = {}
        self._ends: dict[bytes, LinkEnd] = {}
        self._dials: list[Dial] = []
        self._num_requests = 0
        self.legs = OpenLegs()
        self._unlinked: dict[tuple[bytes, bytes], float] = {}
        self.later(0.25, self._pulse)

    def dial(self, address: str, path: Path) -> None:
        self._dials.append(Dial(self, path, address, _accept, self, lambda peer: cast(SimWorker, peer)))

    # Clients ----------------------------------------------------------------------------------------------------------

    def start(self, client: SimClient) -> None:
        plan = client.plan
        tenant = Tenant(plan.tenant or "default", ("0" * 64,) if plan.tenant else ())
        verdict = self.admission.offer(tenant, self.now)
        if isinstance(verdict, Problem):
            client.ended(End(Outcome.REFUSED, verdict), self.now)
            return
        ticket, turn = verdict
        self._num_requests += 1
        request = self.epoch[:8] + self._num_requests.to_bytes(7) + b"\0"
        make = self.world.parts.life
        life = make(request, plan.n, self.now + plan.limit_s, RULES, self.budget, self.now)
        live = self.by_ticket[ticket] = LiveRequest(life, client, ticket)
        if turn is Verdict.ADMITTED:
            self.feed(live, Admitted())
        else:
            self._keep_timer(live)

    def client_gone(self, client: SimClient) -> None:
        live = next((each for each in self.by_ticket.values() if each.client is client), None)
        if live is not None:
            client.is_gone = True
            self.feed(live, ClientGone())

    def stop_all(self) -> None:
        for live in list(self.by_ticket.values()):
            self.feed(live, Refused(shutting_down()))

    # Workers ----------------------------------------------------------------------------------------------------------

    def received(self, end: LinkEnd, frame: bytes) -> None:
        message = codec.decode(frame, ToGateway)
        epoch = end.other.process.epoch
        match message:
            case Hello():
                self._linked(end, message)
            case WorkerState():
                worker = self.table.get(epoch)
                if worker is not None:
                    known, is_new = worker.state, worker.state is None
                    worker.reported(message)
                    if is_new or (known is not None and known.draining != message.draining):
                        self._routes_changed()
            case Tokens():
                for entry in message.entries:
                    self.legs.arrived(epoch, entry)
                    live = self.by_run.get(entry.request)
                    if live is not None:
                        self.feed(live, Arrived(epoch, entry))
            case LegFailed():
                self.legs.failed(epoch, message.request, message.attempt)
                live = self.by_run.get(message.request)
                if live is not None:
                    self.note(f"leg {message.request.hex()[-4:]}/{message.attempt} failed: {message.reason}")
                    self.feed(live, LegEnded(epoch, message))

    def _linked(self, end: LinkEnd, hello: Hello) -> None:
        address = Address(host=end.other.process.address, port=1)
        worker = LinkedWorker(
            hello, address, cast(Any, None), lambda message: end.send(codec.encode(message)), lambda: self.now
        )
        if not self.table.add(worker):
            end.close("this worker is linked already")
            return
        self._ends[hello.epoch] = end
        self._routes_changed()

    def lost(self, end: LinkEnd, detail: str) -> None:
        epoch = end.other.process.epoch
        if self._ends.get(epoch) is not end:
            return
        del self._ends[epoch]
        self.table.remove(epoch)
        self.legs.lost(epoch)
        for live in list(self.by_ticket.values()):
            self.feed(live, WorkerLost(epoch))

    def _routes_changed(self) -> None:
        for live in list(self.by_ticket.values()):
            self.feed(live, RoutesChanged())

    def _pulse(self) -> None:
        for epoch, end in list(self._ends.items()):
            worker = self.table.get(epoch)
            is_suspect = end.look(self.now) is PeerState.SUSPECT
            if worker is not None and worker.is_suspect != is_suspect:
                worker.is_suspect = is_suspect
                self._routes_changed()
        for ticket in self.admission.expired(self.now):
            self.feed(self.by_ticket[ticket], Refused(queue_timeout(1)))
        self.later(0.25, self._pulse)

    # Carrying out, as `Relay` does ------------------------------------------------------------------------------------

    def feed(self, live: LiveRequest, event: Event) -> None:
        self._carry_out(live, live.life.handle(event, self.now))
        self._keep_timer(live)

    def _carry_out(self, live: LiveRequest, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Deliver():
                    self._deliver(live, action)
                case Send():
                    self._send(live, action)
                case PickRoute():
                    self.feed(live, self._route(live, action))
                case Prepare():
                    self.later(self.world.delay(0.01), lambda: self._prepare(live))
                case End():
                    self._end(live, action)

    def _prepare(self, live: LiveRequest) -> None:
        if live.ticket not in self.by_ticket:
            return
        plan = live.client.plan
        found = revisions(self.table.views(), SERVED, self.policy)
        prompt = Prompt(plan.tokens, plan.sampling, plan.tenant)
        live.prefix = prefix_keys(plan.tokens, plan.tenant)
        live.fingerprint = next(iter(found), self.world.parts.fingerprint)
        self.feed(live, Prepared((prompt,)))

    def _deliver(self, live: LiveRequest, action: Deliver) -> None:
        live.client.deliver(action)
        first = live.client.plan.stop_after
        stop = None if first is None else first + 2 * action.choice
        reached = stop is not None and len(live.client.got[action.choice]) >= stop
        if reached and action.finish is None and action.choice not in live.client.stopped:
            assert stop is not None
            live.client.stopped.add(action.choice)
            self.feed(live, StopFound(action.choice, stop))

    def _send(self, live: LiveRequest, action: Send) -> None:
        worker = self.table.get(action.worker)
        live.used.add(action.worker)
        if worker is not None and worker.send(action.message):
            self.legs.sent(action.worker, action.message)
            if isinstance(action.message, Prefill | Reserve):
                worker.sent(len(action.message.tokens) // 4)
        elif not isinstance(action.message, Cancel):
            self.later(0.0, lambda: self.feed(live, WorkerLost(action.worker)))

    def _route(self, live: LiveRequest, action: PickRoute) -> Routed | NoRoute:
        assert live.fingerprint is not None
        size = (action.tokens, action.total_tokens, action.choices, action.avoid, live.prefix, action.kept)
        query = RouteQuery(live.fingerprint, *size)
        draw = self.world.heap.random.random()
        route = self.world.parts.pick(query, self.table.views(), self.policy, self.affinity, draw)
        if isinstance(route, Problem):
            self.note(f"no route for {action.run.hex()[-4:]}: {route.code}")
            return NoRoute(action.run, route)
        workers = [epoch for epoch in (route.prefill, route.decode) if epoch is not None]
        self.affinity.sent(workers, live.prefix)
        for epoch in workers:
            worker = self.table.get(epoch)
            fits = worker is not None and worker.hello.fingerprint == live.fingerprint
            require(fits, "I6", f"request {live.client.plan.number} is routed to another revision")
        local = route.prefill is None and not self.policy.decode_locally
        require(not local, "I9", "a prefill was put on a decode worker against the policy")
        self.by_run[action.run] = live
        live.run_ids = (*live.run_ids, action.run)
        self.note(f"run {action.run.hex()[-4:]} of request {live.client.plan.number} to {self._names(workers)}")
        return Routed(action.run, route)

    def _names(self, workers: list[bytes]) -> str:
        return " and ".join(self._ends[epoch].other.process.name for epoch in workers)

    def _end(self, live: LiveRequest, action: End) -> None:
        problem = "" if action.problem is None else action.problem.code
        self.note(f"request {live.client.plan.number} ended: {action.outcome} {problem}")
        live.client.ended(action, self.now)
        self.legs.require_none(live.run_ids)
        self.world.ended(live)  # type: ignore[attr-defined]
        del self.by_ticket[live.ticket]
        for run in live.run_ids:
            self.by_run.pop(run, None)
        for ticket in self.world.parts.leave(self.admission, live.ticket):
            self.later(0.0, lambda ticket=ticket: self._admit(ticket))  # type: ignore[misc]

    def _admit(self, ticket: int) -> None:
        live = self.by_ticket.get(ticket)
        if live is not None:
            self.feed(live, Admitted())

    # Timers -----------------------------------------------------------------------------------------------------------

    def _keep_timer(self, live: LiveRequest) -> None:
        if live.ticket not in self.by_ticket:
            return
        wake_at = live.life.wake_at
        if live.timer_s != wake_at:
            live.timer_s = wake_at
            self.later(wake_at - self.now, lambda: self._tick(live, wake_at))

    def _tick(self, live: LiveRequest, at: float) -> None:
        if live.timer_s == at and live.ticket in self.by_ticket:
            live.timer_s = None
            self.feed(live, Tick())

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for live in self.by_ticket.values():
            late = self.now - live.life.deadline_s
            for run in live.life._runs.values():
                self._check_linked(live, run)
            require(late < 1.0, "I3", f"request {live.client.plan.number} is {late:.1f} s beyond its deadline")

    def _check_linked(self, live: LiveRequest, run: Run) -> None:
        place = run.request, run.decode
        require(run.state is not RunState.ROUTING, "I3", f"{run.request.hex()[-6:]}: nobody works for this run")
        if run.state is not RunState.RUNNING or self.table.get(run.decode) is not None:
            self._unlinked.pop(place, None)
            return
        since = self._unlinked.setdefault(place, self.now)
        lost_s = self.now - since
        require(lost_s < 0.5, "I3", f"request {live.client.plan.number} waits for a worker that is lost")

    def leftovers(self) -> str | None:
        if self.by_ticket or self.by_run or self.admission.num_running or self.admission.num_waiting:
            numbers = [live.client.plan.number for live in self.by_ticket.values()]
            return f"{self.name}: requests {numbers}, runs {len(self.by_run)}, running {self.admission.num_running}"
        return None


def _accept(peer: SimProcess, connection: Connection) -> None:
    cast(SimWorker, peer).accept_gateway(connection)
