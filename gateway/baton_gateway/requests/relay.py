"""Carries out what the machine of each request decides: asks admission, has prompts built, routes, talks to workers,
turns ids into text for answer writers, keeps timers. Everything runs in one event loop; decisions are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.ledger.request_ledger import RequestLedger
from baton_gateway.openai_api.answer_writers import AnswerWriter
from baton_gateway.openai_api.encoding_answers import EncodingWriter
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.openai_api.response_encoding import Usage
from baton_gateway.records.record_ring import RecordRing
from baton_gateway.records.trail import KeptTrail, Moment, keep
from baton_gateway.reporting.metrics import GatewayMetrics, route_name
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.accounting import answer_lengths, count_backlog, count_end, count_prompt
from baton_gateway.requests.admission import Admission, Verdict
from baton_gateway.requests.batch_slack import batch_slack
from baton_gateway.requests.deliveries import ArrivedEntry, Deliveries
from baton_gateway.requests.held_runs import HeldRuns
from baton_gateway.requests.ledger_keeping import close_entry, note_device_time, note_end, note_first, open_entry
from baton_gateway.requests.live_request import LiveRequest, RelayRules, answer_effort, log_failure, num_sequences
from baton_gateway.requests.model_load import ModelLoad
from baton_gateway.requests.model_loads import ModelLoads
from baton_gateway.requests.parked_requests import select_parked_evictions
from baton_gateway.requests.prompt_builder import PromptBuilder
from baton_gateway.requests.record_keeping import begin_trail, note_arrival, trail_facts
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Admitted,
    Arrived,
    ClientGone,
    Deliver,
    DeliverEncoded,
    DeliverPrompt,
    EncodedArrived,
    End,
    Event,
    LegEnded,
    NoRevision,
    NoRoute,
    PickRoute,
    Prepare,
    Prepared,
    PromptArrived,
    Refused,
    Routed,
    RoutesChanged,
    Send,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_gateway.requests.request_failures import to_problem
from baton_gateway.requests.retry_budget import RetryBudgets
from baton_gateway.requests.routing import Routing
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.wait_prediction import Work
from baton_gateway.requests.waiting_line import QueuePlace
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.outbox import ToWorker
from baton_gateway.workers.route import Route
from baton_gateway.workers.sent_work import SentWork
from baton_gateway.workers.start_up import explain_missing, missing_pool
from baton_wire.errors import BadFieldsError
from baton_wire.fair_loop.charging import process_context
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.encoding import Encode, EncodedPrompt
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, PromptLogprobs, Reserve, Retarget, Tokens
from baton_wire.messages.measures import Backlog

_log = logging.getLogger("baton.gateway.requests")

RELEASED_PER_S = 500
"""Parked requests are released spread over a while, so that they do not overload a pool that has just started."""


class Relay:
    """All requests of this process. Implements `LinkListener` for the workers' links and `RunRouter` for held runs."""

    def __init__(
        self,
        table: WorkerTable,
        admission: Admission,
        templates: TemplateRenderer,
        metrics: GatewayMetrics,
        rules: RelayRules,
        dice: random.Random | None = None,
        records: RecordRing | None = None,
    ) -> None:
        """`dice`: the operating system's when None, because clients must not be able to guess the ids of requests.
        `records` gets the records of requests that have ended.
        """
        self.records = RecordRing() if records is None else records
        self.worker_silent = self.records.interruptions.silent
        self._table = table
        self._admission = admission
        self._metrics = metrics
        self._rules = rules
        self._complaints = Complaints(_log)
        self._budgets = RetryBudgets()
        self._dice = dice or random.SystemRandom()
        self._routing = Routing(table, self._dice)
        self._sent = SentWork()
        self._loads = ModelLoads(table, admission)
        self.prompts = PromptBuilder(table, templates, metrics, self._dice)
        self.held = HeldRuns(table, self)
        admission.slack = lambda: batch_slack(table.views(), len(self.held))
        self._loop = asyncio.get_running_loop()
        self._by_ticket: dict[int, LiveRequest] = {}
        self._by_run: dict[bytes, LiveRequest] = {}
        self._deliveries = Deliveries(self._loop, self._deliver_arrived, self._by_ticket)
        self._admission_timer: asyncio.TimerHandle | None = None
        self._context = process_context()
        """The context of the timer of admission, which ends waits of all tenants."""
        self._idle = asyncio.Event()
        self.trace: Callable[[KeptTrail], None] | None = None
        """Takes the trails of sampled requests that have ended; None: traces are not exported."""
        self.ledger: RequestLedger | None = None
        """Records what requests use; None: nothing does."""
        self.on_parked: Callable[[], None] = lambda: None
        """Called when a request finds no pair of workers."""
        self.on_workers_changed: Callable[[], None] = lambda: None
        """Called when a worker is linked or lost, begins to drain, or reports a flip."""

    def reconfigure(self, rules: RelayRules) -> None:
        """Apply other rules to requests that arrive from now on."""
        self._rules = rules

    def backlog(self) -> Backlog:
        """The requests that more workers would serve sooner."""
        return count_backlog(self._metrics, self._by_ticket, self._admission.waiting_for_quota(), self._loop.time())

    def answers(self) -> Iterator[tuple[int, int]]:
        """(tokens of its prompt, tokens so far) of each answer that has begun."""
        return answer_lengths(self._by_ticket)

    @property
    def num_parked(self) -> int:
        return sum(live.life.is_parked for live in self._by_ticket.values())

    @property
    def num_live(self) -> int:
        return len(self._by_ticket)

    # From HTTP --------------------------------------------------------------------------------------------------------

    def start(
        self,
        request: ChatRequest | CompletionRequest,
        tenant: Tenant,
        writer: AnswerWriter,
        request_id: str = "",
        session: int | None = None,
        began_s: float | None = None,
    ) -> LiveRequest:
        """Begin a request. Raises RefusedError when it may not even wait. `session`: a number of the session that its
        client named; `began_s`: when the head of its HTTP request was read; None: now.

        Its wait is predicted first, because that changes nothing: only a request that may join the queue evicts others.
        """
        now = self._loop.time()
        work, sequences, at_once = self._loads.expected(request), num_sequences(request), request.options.n
        place = QueuePlace(tenant.grant(request.options.priority), session)
        effort, is_own_quota = answer_effort(request), self._admission.quota_turns(tenant, at_once, place) > 0
        verdict: tuple[int, Verdict] | Problem | None
        verdict = self._loads.overload(request, tenant, work, self._rules.wait, now, place)
        if verdict is None:
            for evicted in self._admission.select_evictions(tenant, sequences, at_once, effort, place):
                self._evict(self._by_ticket[evicted])
            verdict = self._admission.offer(tenant, sequences, now, at_once, effort, place)
        if isinstance(verdict, Problem):
            self._metrics.refused(now, is_demand=not is_own_quota)
            raise RefusedError(verdict)
        ticket, turn = verdict
        self._metrics.telemetry.offered(waits=turn is Verdict.QUEUED)
        life = self._new_life(request.options.n, tenant, now)
        times = self._metrics.arrived(now)
        live = LiveRequest(life, request, tenant, writer, ticket, times, request_id, session=session)
        if self.records.is_on or self.trace is not None:
            begin_trail(live, began_s, now, self._rules.life.tpot_s, is_own_quota=is_own_quota)
        self._by_ticket[ticket] = live
        load = self._loads.of(live)
        load.add(ticket, work, tenant, now=now)
        if load.is_shared(tenant.name, now):
            life.flow = tenant.flow  # a tenant that asks alone has a turn for each of its requests
        if turn is Verdict.ADMITTED:
            self._admit_one(live)
        else:
            self._keep_timer(live)
            self._keep_admission_timer()
        return live

    def expected_work(self, request: ChatRequest | CompletionRequest) -> Work:
        """The expected work of the request's first prompt."""
        return self._loads.expected(request)

    def update_tenant(self, tenant: Tenant) -> None:
        """Let requests of a tenant begin for which it has room by now."""
        self._admit(self._admission.update_tenant(tenant))

    def _evict(self, live: LiveRequest) -> None:
        """Refuse a queued request, so that a tenant with less in the queue finds room."""
        self._feed(live, Refused(errors.queue_full(self._admission.retry_after_s(live.tenant))))

    def _new_life(self, n: int, tenant: Tenant, now: float) -> RequestLife:
        rules, budget = self._rules.life.patient_for(self._table.settled_s - now), self._budgets.of(tenant.name)
        return RequestLife(self._dice.randbytes(16), n, now + self._rules.max_duration_s, rules, budget, now)

    def client_gone(self, live: LiveRequest) -> None:
        """The client hung up, or does not read."""
        self._feed(live, ClientGone())

    def end_all(self) -> None:
        """The gateway stops: end every request, and free what workers hold for it."""
        for live in list(self._by_ticket.values()):
            self._feed(live, Refused(errors.shutting_down()))

    async def until_idle(self) -> None:
        """Return once no request is left."""
        if self._by_ticket:
            self._idle.clear()
            await self._idle.wait()

    # From the workers -------------------------------------------------------------------------------------------------

    def worker_reported(self) -> None:
        self.held.release_ready()
        self._admit(self._admission.start_batches())

    def worker_flipped(self) -> None:
        self.on_workers_changed()

    def worker_changed(self) -> None:
        self.on_workers_changed()
        parked = 0
        for live in list(self._by_ticket.values()):
            if live.life.is_parked:
                parked += 1
                delay_s = self._dice.uniform(0.0, parked / RELEASED_PER_S)
                self._loop.call_later(delay_s, self._feed, live, RoutesChanged(), context=live.context)
            else:
                self._feed(live, RoutesChanged())

    def worker_lost(self, epoch: bytes, is_refusal: bool = False) -> None:
        self.on_workers_changed()
        self._deliveries.deliver_now(list(self._by_ticket.values()))
        for live in list(self._by_ticket.values()):
            self._feed(live, WorkerLost(epoch, is_refusal))

    def tokens(self, epoch: bytes, frame: Tokens) -> None:
        """Take new tokens, which are delivered soon. Frames of one turn of the loop are written together: where this
        process falls behind, it writes less often."""
        has_room = False
        for entry in frame.entries:
            if (live := self._by_run.get(entry.request)) is not None:
                if entry.first_index == 0 or entry.finish is not None:
                    has_room |= self._sent.take(entry)
                note_device_time(live, self._table, epoch, entry)
                if live.trail is not None and (live.trail.expected or entry.times is not None):
                    note_arrival(live.trail, self._loop.time(), epoch, entry)
                self._deliveries.add(live, epoch, entry)
        if has_room:
            self.held.note_room()

    @property
    def is_behind(self) -> bool:
        """True if links should not be read for a moment: too many tokens wait here."""
        return self._deliveries.is_behind

    def _deliver_arrived(self, live: LiveRequest, arrived: list[ArrivedEntry]) -> None:
        now = self._loop.time()
        for epoch, entry in arrived:
            if self._by_run.get(entry.request) is live:  # its run may have ended meanwhile
                actions = live.life.handle(Arrived(epoch, entry), now)
                if live.life.lost_attempts:
                    self._note_lost(live, now)
                self._carry_out(live, actions, now)
                if not actions or type(actions[-1]) is not Deliver:
                    self._keep_timer(live)
                    self._count(live)

    def prompt_logprobs(self, epoch: bytes, message: PromptLogprobs) -> None:
        if (live := self._by_run.get(message.request)) is not None:
            self._deliveries.deliver_now([live])
            before = live.life.completion_tokens()
            self._feed(live, PromptArrived(epoch, message))
            if live.life.completion_tokens() > before:  # tokens that had waited for the prompt's log probabilities
                live.writer.flush()

    def encoded(self, epoch: bytes, message: EncodedPrompt) -> None:
        if (live := self._by_run.get(message.request)) is not None:
            self._sent.take_encoded(message.request)
            note_device_time(live, self._table, epoch, message)
            self._feed(live, EncodedArrived(epoch, message))
            self.held.note_room()

    def leg_failed(self, epoch: bytes, message: LegFailed) -> None:
        if (live := self._by_run.get(message.request)) is not None:
            self._deliveries.deliver_now([live])
            self._metrics.leg_failed(message.reason)
            self._routing.failing.record(epoch, message.reason, self._loop.time())
            has_room = self._sent.take_failed(epoch, message)
            self._feed(live, LegEnded(epoch, message))
            if has_room:
                self.held.note_room()

    def unsent(self, message: ToWorker, refusal: BadFieldsError) -> None:
        """A worker would have refused the message: only its request ends."""
        self._complaints.say("a message to a worker is not sent", str(refusal))
        if (
            isinstance(message, Prefill | Reserve | Encode | Retarget)
            and (live := self._by_run.get(message.request)) is not None
        ):
            self._feed(live, Refused(errors.not_sendable(str(refusal))))

    # Carrying out -----------------------------------------------------------------------------------------------------

    def _feed(self, live: LiveRequest, event: Event) -> None:
        now = self._loop.time()
        actions = live.life.handle(event, now)
        if live.life.lost_attempts:
            self._note_lost(live, now)
        self._carry_out(live, actions, now)
        self._keep_timer(live)
        self._count(live)

    def _note_lost(self, live: LiveRequest, now: float) -> None:
        """Note which attempts ended without their results."""
        for lost in live.life.lost_attempts:
            live.last_lost = lost.reason
            if live.trail is not None:
                live.trail.failed(now, lost.run, lost.attempt, lost.at_fault, lost.reason.value)
        live.life.lost_attempts.clear()

    def _count(self, live: LiveRequest) -> None:
        """Report the request's sequences at work to admission: each that ended may let another one in."""
        if live.ticket in self._by_ticket:
            at_work = live.life.sequences_at_work
            self._loads.of(live).set_running(live.ticket, at_work, asyncio.get_running_loop().time())
            if at_work:
                self._admit(self._admission.set_running(live.ticket, at_work))

    def _carry_out(self, live: LiveRequest, actions: list[Action], now: float) -> None:
        rest = iter(actions)
        try:
            for action in rest:
                match action:
                    case Deliver():
                        self._deliver(live, action, now)
                    case DeliverPrompt(prompt, first_index, logprobs):
                        if live.scores is not None:
                            live.scores.take(prompt, first_index, logprobs)
                    case DeliverEncoded(prompt, values):
                        self._deliver_encoded(live, prompt, values, now)
                    case Send():
                        self._send(live, action)
                    case PickRoute() if live.ticket in self._by_ticket:
                        self._pick_route(live, action)
                    case Prepare():
                        live.note_unparked()
                        live.preparing = self._loop.create_task(self._prepare(live), context=live.context)
                    case End():
                        self._end(live, action, now)
        except BaseException as error:  # noqa: BLE001 (of one request; this may be a link's reader, or a timer)
            self._end_broken(live, error, rest, now)

    def _pick_route(self, live: LiveRequest, action: PickRoute) -> None:
        """Choose a route for a run, which goes there or is held until a worker has room."""
        route = self.choose(live, action)
        self._count_missing(live, action, route)
        if waits_for := self.held.holds(live, action, route, self._rules.ttft_s, self._rules.life.tpot_s):
            live.note(Moment.HELD, waits_for, action.run)
        else:
            self._feed(live, self._routed(live, action, route))

    def _problem(self, error: BaseException, field: str | None = None) -> Problem:
        """The client's error for a failure in this process; `field`: the prompt's, while that is prepared."""
        return to_problem(error, field, self._complaints)

    def _end_broken(self, live: LiveRequest, error: BaseException, rest: Iterator[Action], now: float) -> None:
        """End a request that this process failed; messages to workers that were still due are sent."""
        problem = self._problem(error)
        for action in (*rest, *live.life.handle(Refused(problem), now)):
            if isinstance(action, Send):
                self._send(live, action)
        if live.ticket in self._by_ticket:
            self._end(live, End(Outcome.FAILED, problem), now)

    def _deliver(self, live: LiveRequest, action: Deliver, now: float) -> None:
        gap_s = self._metrics.delivered(live.times, action.choice, len(action.ids), now)
        if gap_s > live.slow_gap_s and live.trail is not None:
            live.trail.slow(gap_s, now, action.choice)
        if action.is_first:
            self._loads.of(live).mark_answered(live.ticket)
            self._routing.settle(live.run_ids, now)
            note_first(live)
        if action.is_first and live.scores is not None and not live.scores.is_complete(live.prompt_of(action.choice)):
            self._feed(live, Refused(errors.internal_error()))  # workers send the prompt's log probabilities first
            return
        increment = live.increment(action)
        live.writer.increment(action.choice, increment)
        if increment.stopped_after is not None:
            self._feed(live, StopFound(action.choice, increment.stopped_after))

    def _deliver_encoded(self, live: LiveRequest, prompt: int, values: bytes, now: float) -> None:
        self._metrics.delivered(live.times, prompt, 1, now)  # as much work as a prompt with one token
        self._loads.of(live).mark_answered(live.ticket)
        assert isinstance(live.writer, EncodingWriter)
        live.writer.encoded(prompt, values)

    def _send(self, live: LiveRequest, action: Send) -> None:
        worker = self._table.get(action.worker)
        if worker is not None and worker.send(action.message):
            if self._sent.record(worker, action.message, action.missing_tokens):
                self.held.note_room()
        elif not isinstance(action.message, Cancel):
            self._loop.call_soon(self._feed, live, WorkerLost(action.worker), context=live.context)

    def _end(self, live: LiveRequest, action: End, now: float) -> None:
        del self._by_ticket[live.ticket]
        has_room = False
        for run in live.run_ids:
            self._by_run.pop(run, None)
            has_room |= self._sent.end(run)
        if has_room:
            self.held.note_room()
        self._routing.settle(live.run_ids, now)
        live.cancel()
        live.note(Moment.ENDED, action.outcome.value)
        problem = None if action.problem is None else explain_missing(self._table, action.problem)
        live.outcome, live.problem = action.outcome.value, problem
        self._admit(self._admission.leave(live.ticket))
        if not self._by_ticket:
            self._idle.set()
        usage = count_end(self._metrics, self._loads.of(live), live, action, now)
        note_end(live, action.outcome, usage)
        if action.outcome is Outcome.FAILED:
            log_failure(live.life, problem, now, live.request_id)
        if action.outcome is not Outcome.CANCELLED:
            self._end_answer(live, problem, usage)

    def _end_answer(self, live: LiveRequest, problem: Problem | None, usage: Usage) -> None:
        try:
            live.writer.end(problem, usage)
        except BaseException as error:  # noqa: BLE001 (its client would be left without an answer)
            live.writer.end(self._problem(error), usage)

    # Preparing --------------------------------------------------------------------------------------------------------

    async def _prepare(self, live: LiveRequest) -> None:
        event: Event
        try:
            revision = self._routing.choose_revision(
                live.request.options.model, self._rules.route, is_encoded=live.is_encoded
            )
            if isinstance(revision, Problem):
                event = self._park(live, revision)
            else:
                event = Prepared(await self.prompts.build(live, revision, self._rules.prompts))
                live.note(Moment.PREPARED)
        except BaseException as error:  # noqa: BLE001 (nothing else would end it before its deadline)
            event = Refused(self._problem(error, live.prompt_field))
        live.preparing = None
        self._feed(live, event)

    def _park(self, live: LiveRequest, problem: Problem) -> NoRevision | Refused:
        """Keep the request until workers appear, or refuse it or others where too many are parked."""
        parked = [other for other in self._by_ticket.values() if other.life.is_parked and other is not live]
        evicted = select_parked_evictions(live, parked, self._rules.max_parked, self._rules.max_parked_bytes)
        if evicted is None:
            return Refused(errors.no_workers(self._admission.retry_after_s(live.tenant)))
        for other in evicted:
            self._feed(other, Refused(errors.no_workers(self._admission.retry_after_s(other.tenant))))
        self.on_parked()
        live.note_parked(missing_pool(self._table))
        return NoRevision(problem)

    # Routing ----------------------------------------------------------------------------------------------------------

    def choose(self, live: LiveRequest, action: PickRoute) -> Route | Problem:
        """Where the run would go now."""
        waiting = self.held.num_in_time(live.fingerprint)
        return self._routing.choose(live, action, self._rules.route, self._loop.time(), waiting=waiting)

    def release(self, live: LiveRequest, action: PickRoute) -> Route | None:
        """Send a held run to its workers. None: its request is over, or no workers can take it."""
        if live.ticket not in self._by_ticket:
            return None
        try:
            route = self.choose(live, action)
            self._count_missing(live, action, route)
            self._feed(live, self._routed(live, action, route))
        except BaseException as error:  # noqa: BLE001 (of one request; others are held after it)
            self._end_broken(live, error, iter(()), self._loop.time())
            return None
        return route if isinstance(route, Route) else None

    def may_grow(self, live: LiveRequest, sequences: int) -> bool:
        """Return whether admission lets this many more sequences of the request run."""
        return self._admission.may_grow(live.ticket, sequences)

    def load_of(self, live: LiveRequest) -> ModelLoad:
        """The load of the request's model."""
        return self._loads.of(live)

    def _count_missing(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> None:
        """Others wait for the tokens of a prompt that its worker has to compute, not for those that it has cached."""
        if isinstance(route, Route) and route.missing_tokens is not None and action.is_first and len(live.places) == 1:
            self._loads.of(live).set_prompt_tokens(live.ticket, route.missing_tokens)

    def _routed(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> Routed | NoRoute | Refused:
        now = self._loop.time()
        if isinstance(route, Problem):
            self.on_parked()
            live.note(Moment.UNROUTED, missing_pool(self._table), action.run)
            return NoRoute(action.run, route, self._routing.is_superseded(live, self._rules.route))
        if live.life.attempts == 0:
            if self.ledger is not None and (refusal := open_entry(self.ledger, live)) is not None:
                return Refused(refusal)
            count_prompt(self._metrics, live, action, route, self._routing.places(live, action.prompt), now)
        self._routing.record(live, action, route, now)
        self._metrics.routed(route)
        if live.last_lost is not None and not action.is_first:
            self._metrics.retried(live.last_lost)
        if live.trail is not None:
            self._note_route(live, action.run, route, now)
        self._by_run[action.run] = live
        live.run_ids = (*live.run_ids, action.run)
        load = self._loads.of(live)
        load.mark_sent(live.ticket)
        if action.is_first:
            load.record_prefill(live.tenant, route.own_s, route.missing_tokens or action.tokens, now)
        return Routed(action.run, route)

    def _note_route(self, live: LiveRequest, run: bytes, route: Route, now: float) -> None:
        assert live.trail is not None
        live.trail.routed(now, run, live.life.attempt_of(run) + 1, route.prefill, route.decode, route_name(route))
        for epoch in (route.decode, route.prefill):
            if epoch is not None and not self.records.knows(epoch) and (worker := self._table.get(epoch)) is not None:
                self.records.remember(epoch, str(worker.address))

    def closed(self, live: LiveRequest) -> None:
        """Keep the record of a request: its client has the whole answer, or is gone."""
        close_entry(live)
        if live.trail is not None:
            live.note(Moment.CLOSED)
            kept = keep(live.trail, trail_facts(live, self._rules), self.records.interruptions)
            live.trail = None
            if self.records.is_on:
                self.records.add(kept)
            if self.trace is not None and kept.facts.is_sampled:
                self.trace(kept)

    # Timers -----------------------------------------------------------------------------------------------------------

    def _keep_timer(self, live: LiveRequest) -> None:
        if live.ticket in self._by_ticket:
            live.keep_timer(self._loop, self._tick)

    def _tick(self, live: LiveRequest) -> None:
        live.timer = None
        self._feed(live, Tick())

    def _admit(self, tickets: list[int]) -> None:
        for ticket in tickets:
            if (live := self._by_ticket.get(ticket)) is not None:
                self._loop.call_soon(self._admit_one, live, context=live.context)

    def _admit_one(self, live: LiveRequest) -> None:
        if live.ticket in self._by_ticket:
            now = self._loop.time()
            self._metrics.admitted(live.times, now)
            live.note(Moment.ADMITTED, live.queued_for)
            self._loads.of(live).admit(live.ticket, now)
            self._feed(live, Admitted())

    def _keep_admission_timer(self) -> None:
        if self._admission_timer is not None:
            self._admission_timer.cancel()
            self._admission_timer = None
        if (expiry := self._admission.next_expiry()) < float("inf"):
            self._admission_timer = self._loop.call_at(expiry, self._expire_waiting, context=self._context)

    def _expire_waiting(self) -> None:
        self._admission_timer = None
        for ticket in self._admission.expired(self._loop.time()):
            live = self._by_ticket[ticket]
            self._feed(live, Refused(errors.queue_timeout(self._admission.retry_after_s(live.tenant))))
        self._keep_admission_timer()
