"""Carries out what the machine of each request decides: asks admission, prepares prompts, routes, talks to workers,
turns ids into text for sinks, keeps timers. Everything runs in one event loop; decisions are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.answer_bounds import token_bytes
from baton_gateway.openai_api.answer_writers import AnswerWriter
from baton_gateway.openai_api.openai_types import ApiEndpoint, ChatRequest, CompletionRequest
from baton_gateway.openai_api.response_encoding import AnswerHead, ResponseHead, Usage
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.outcome import Outcome, RequestTotals
from baton_gateway.requests.admission import Admission, Verdict
from baton_gateway.requests.held_runs import HeldRuns
from baton_gateway.requests.live_request import (
    LiveRequest,
    RelayRules,
    answer_bytes,
    answer_effort,
    num_sequences,
    tell_failure,
)
from baton_gateway.requests.model_lines import ModelLines
from baton_gateway.requests.parked import parked_that_leave
from baton_gateway.requests.preparing import (
    chat_prompt,
    chat_reading,
    chat_room,
    completion_prompts,
    conversation,
    make_prompts,
    thought_of,
)
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Admitted,
    Arrived,
    ClientGone,
    Deliver,
    DeliverPrompt,
    End,
    Event,
    LegEnded,
    NoRevision,
    NoRoute,
    PickRoute,
    Prepare,
    Prepared,
    Prompt,
    PromptArrived,
    Refused,
    Routed,
    RoutesChanged,
    Send,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_gateway.requests.request_failures import problem_of
from baton_gateway.requests.retry_budget import RetryBudgets
from baton_gateway.requests.routing import Routing
from baton_gateway.requests.scored_prompts import echoed_prompts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.structured_outputs.format_compiler import ShapeCompiler
from baton_gateway.structured_outputs.output_format import OutputFormat
from baton_gateway.text.encoding import PromptEncoder
from baton_gateway.text.generation_defaults import OF_THE_API
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.affinity import prefix_keys
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.links import ToWorker
from baton_gateway.workers.request_limits import ModelLimits
from baton_gateway.workers.route import Route
from baton_wire.errors import BadFieldsError
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, PromptLogprobs, Reserve, Retarget, Tokens
from baton_wire.messages.measures import Backlog
from baton_wire.messages.values import Grammar, PairFingerprint, Thought

_log = logging.getLogger("baton.gateway.requests")

RELEASED_PER_S = 500
"""Parked requests are let go spread over a while, so that a pool that woke up is not buried at once."""

FLUSH_S = 0.005
"""For so long sinks write, before others have their turn."""


class Relay:
    """All requests of this process."""

    def __init__(
        self,
        table: WorkerTable,
        admission: Admission,
        templates: TemplateRenderer,
        metrics: GatewayMetrics,
        rules: RelayRules,
        dice: random.Random | None = None,
    ) -> None:
        """`dice` are the operating system's when None: requests need ids that nobody can guess."""
        self._table = table
        self._admission = admission
        self._templates = templates
        self.encoder = PromptEncoder()
        self.shapes = ShapeCompiler(metrics.shaped)
        self._metrics = metrics
        self._rules = rules
        self._complaints = Complaints(_log)
        self._budgets = RetryBudgets()
        self._dice = dice or random.SystemRandom()
        self._routing = Routing(table, self._dice)
        self._lines = ModelLines(table, admission)
        self.held = HeldRuns(
            table,
            self._let_go,
            lambda live: self._lines.of(live).output_tokens,
            lambda live, sequences: admission.may_grow(live.ticket, sequences),
            self._choose,
            self._lines.of,
        )
        self.worker_reported = self.held.look
        self._by_ticket: dict[int, LiveRequest] = {}
        self._by_run: dict[bytes, LiveRequest] = {}
        self._touched: dict[int, LiveRequest] = {}
        """By ticket: whose sinks have increments to tell."""
        self._loop = asyncio.get_running_loop()
        self._admission_timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.on_parked: Callable[[], None] = lambda: None
        """Called when a request finds no pair of workers."""
        self.on_workers_changed: Callable[[], None] = lambda: None
        """Called when a worker is linked or lost, begins to stop, or tells of a flip."""

    def reconfigure(self, rules: RelayRules) -> None:
        """Other rules, for requests that arrive from now on."""
        self._rules = rules

    def backlog(self) -> Backlog:
        """Requests that no worker has been told of, and that one could take: not those that wait for their own tenant's
        quota."""
        now, blocked = self._loop.time(), self._admission.waiting_for_quota()
        lives = ((ticket, live.life) for ticket, live in self._by_ticket.items())
        waiting = [life for ticket, life in lives if life.attempts == 0 and ticket not in blocked]
        oldest_s = now - min((life.arrived_s for life in waiting), default=now)
        parked = sum(life.is_parked for life in waiting)
        return self._metrics.telemetry.backlog(len(waiting), parked, oldest_s, len(waiting))

    @property
    def num_parked(self) -> int:
        return sum(live.life.is_parked for live in self._by_ticket.values())

    # From HTTP --------------------------------------------------------------------------------------------------------

    def start(
        self, request: ChatRequest | CompletionRequest, tenant: Tenant, sink: AnswerWriter, request_id: str = ""
    ) -> LiveRequest:
        """Begin a request. Raises RefusedError when it may not even wait.

        The wait is predicted first, because that changes nothing: only who may join takes a place from others.
        """
        now = self._loop.time()
        work, sequences, at_once = self._lines.expected(request), num_sequences(request), request.options.n
        effort, is_own_quota = answer_effort(request), self._admission.quota_turns(tenant, at_once) > 0
        verdict: tuple[int, Verdict] | Problem | None
        verdict = self._lines.overload(request, tenant, work, self._rules.wait, now)
        if verdict is None:
            for displaced in self._admission.displaced_by(tenant, sequences, at_once, effort):
                self._make_room(self._by_ticket[displaced])
            verdict = self._admission.offer(tenant, sequences, now, at_once, effort)
        if isinstance(verdict, Problem):
            self._metrics.refused(is_demand=not is_own_quota)
            raise RefusedError(verdict)
        ticket, turn = verdict
        self._metrics.telemetry.offered(waits=turn is Verdict.QUEUED)
        life = self._new_life(request.options.n, tenant, now)
        live = LiveRequest(life, request, tenant, sink, ticket, self._metrics.arrived(now), request_id)
        self._by_ticket[ticket] = live
        line = self._lines.of(live)
        line.joins(ticket, work, tenant, now=now)
        if line.is_shared(tenant.name, now):
            life.flow = tenant.flow  # where one tenant asks alone, each of its requests has its own turns
        if turn is Verdict.ADMITTED:
            self._admit_one(ticket)
        else:
            self._keep_timer(live)
            self._keep_admission_timer()
        return live

    def _make_room(self, live: LiveRequest) -> None:
        """Refuse one that waits: it gives way to a tenant with less."""
        self._feed(live, Refused(errors.queue_full(self._admission.retry_after_s(live.tenant))))

    def _new_life(self, n: int, tenant: Tenant, now: float) -> RequestLife:
        rules, budget = self._rules.life.patient_for(self._table.settled_s - now), self._budgets.of(tenant.name)
        return RequestLife(self._dice.randbytes(16), n, now + self._rules.max_duration_s, rules, budget, now)

    def client_gone(self, live: LiveRequest) -> None:
        """The client hung up, or does not read."""
        self._feed(live, ClientGone())

    @property
    def num_live(self) -> int:
        return len(self._by_ticket)

    def answers(self) -> Iterator[tuple[int, int]]:
        """(tokens of its prompt, tokens so far) of each answer that has begun."""
        for live in self._by_ticket.values():
            for tokens in live.times.tokens.values():
                yield live.times.prompt_tokens, tokens

    def end_all(self) -> None:
        """The gateway stops: tell every client, free what the workers hold."""
        for live in list(self._by_ticket.values()):
            self._feed(live, Refused(errors.shutting_down()))

    async def until_idle(self) -> None:
        """No request is left."""
        if self._by_ticket:
            self._idle.clear()
            await self._idle.wait()

    # From the workers -------------------------------------------------------------------------------------------------

    def worker_flipped(self) -> None:
        self.on_workers_changed()

    def worker_changed(self) -> None:
        self.on_workers_changed()
        parked = 0
        for live in list(self._by_ticket.values()):
            if live.life.is_parked:
                parked += 1
                delay_s = self._dice.uniform(0.0, parked / RELEASED_PER_S)
                self._loop.call_later(delay_s, self._feed, live, RoutesChanged())
            else:
                self._feed(live, RoutesChanged())

    def worker_lost(self, epoch: bytes, is_refusal: bool = False) -> None:
        self.on_workers_changed()
        for live in list(self._by_ticket.values()):
            self._feed(live, WorkerLost(epoch, is_refusal))

    def tokens(self, epoch: bytes, frame: Tokens) -> None:
        """Tokens of an answer that came in several frames go to its client together: where this process falls behind,
        it writes less often."""
        now = self._loop.time()
        if not self._touched:
            self._loop.call_soon(self._flush)
        for entry in frame.entries:
            live = self._by_run.get(entry.request)
            if live is not None:
                self._touched[live.ticket] = live
                actions = live.life.handle(Arrived(epoch, entry), now)
                self._carry_out(live, actions, now)
                if not actions or type(actions[-1]) is not Deliver:
                    self._keep_timer(live)
                    self._count(live)

    def _flush(self) -> None:
        """Of many sinks as many as one turn of the loop may cost; it comes again while any is left."""
        lives, until_s = list(self._touched.values()), self._loop.time() + FLUSH_S
        self._touched = {}
        for place, live in enumerate(lives, 1):
            if live.ticket in self._by_ticket:  # else its end told all of it, and the connection may be another's
                live.sink.flush()
            if self._loop.time() > until_s and place < len(lives):
                self._touched = {other.ticket: other for other in lives[place:]}
                self._loop.call_soon(self._flush)
                return

    def prompt_logprobs(self, epoch: bytes, message: PromptLogprobs) -> None:
        if (live := self._by_run.get(message.request)) is not None:
            before = live.life.completion_tokens()
            self._feed(live, PromptArrived(epoch, message))
            if live.life.completion_tokens() > before:  # they waited for it
                live.sink.flush()

    def leg_failed(self, epoch: bytes, message: LegFailed) -> None:
        live = self._by_run.get(message.request)
        if live is not None:
            self._metrics.leg_failed(message.reason)
            self._routing.failing.failed(epoch, message.reason, self._loop.time())
            self._feed(live, LegEnded(epoch, message))

    def unsent(self, message: ToWorker, refusal: BadFieldsError) -> None:
        """A worker would have refused the message: its request alone ends."""
        self._complaints.say("a message to a worker is not sent", str(refusal))
        if (
            isinstance(message, Prefill | Reserve | Retarget)
            and (live := self._by_run.get(message.request)) is not None
        ):
            self._feed(live, Refused(errors.not_sendable(str(refusal))))

    # Carrying out -----------------------------------------------------------------------------------------------------

    def _feed(self, live: LiveRequest, event: Event) -> None:
        now = self._loop.time()
        actions = live.life.handle(event, now)
        self._carry_out(live, actions, now)
        self._keep_timer(live)
        self._count(live)

    def _count(self, live: LiveRequest) -> None:
        """Tell admission how many sequences of the request are at work: those that ended make room for others."""
        if live.ticket in self._by_ticket:
            at_work = live.life.sequences_at_work
            self._lines.of(live).at_work(live.ticket, at_work)
            if at_work:
                self._admit(self._admission.at_work(live.ticket, at_work))

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
                    case Send():
                        self._send(live, action)
                    case PickRoute() if live.ticket in self._by_ticket:
                        route = self._choose(live, action)
                        if not self.held.takes(live, action, route, self._rules.ttft_s, self._rules.life.tpot_s):
                            self._feed(live, self._routed(live, action, route))
                    case Prepare():
                        live.preparing = self._loop.create_task(self._prepare(live))
                    case End():
                        self._end(live, action, now)
        except BaseException as error:  # noqa: BLE001 (of one request; this may be a link's reader, or a timer)
            self._break(live, error, rest, now)

    def _problem(self, error: BaseException, field: str | None = None) -> Problem:
        """What a client is told of a failure here; `field`: the one with the prompt, while that is prepared."""
        return problem_of(error, field, self._complaints)

    def _break(self, live: LiveRequest, error: BaseException, rest: Iterator[Action], now: float) -> None:
        """End a request that this process failed; workers are still told what they were to be told."""
        problem = self._problem(error)
        for action in (*rest, *live.life.handle(Refused(problem), now)):
            if isinstance(action, Send):
                self._send(live, action)
        if live.ticket in self._by_ticket:
            self._end(live, End(Outcome.FAILED, problem), now)

    def _deliver(self, live: LiveRequest, action: Deliver, now: float) -> None:
        self._metrics.delivered(live.times, action.choice, len(action.ids), now)
        if action.is_first:
            self._lines.of(live).answered(live.ticket)
        if action.is_first and live.scores is not None and not live.scores.is_complete(live.prompt_of(action.choice)):
            self._feed(live, Refused(errors.internal_error()))  # the worker's own rule: the prompt comes first
            return
        increment = live.increment(action)
        live.sink.increment(action.choice, increment)
        if increment.stopped_after is not None:
            self._feed(live, StopFound(action.choice, increment.stopped_after))

    def _send(self, live: LiveRequest, action: Send) -> None:
        worker = self._table.get(action.worker)
        if worker is not None and worker.send(action.message):
            if isinstance(action.message, Prefill | Reserve):
                message = action.message
                is_computed = isinstance(message, Prefill) or message.prefill_epoch is None
                tokens = len(message.tokens) // 4 if action.missing_tokens is None else action.missing_tokens
                worker.sent(tokens, len(message.choices), is_computed=is_computed)
        elif not isinstance(action.message, Cancel):
            self._loop.call_soon(self._feed, live, WorkerLost(action.worker))

    def _let_go(self, live: LiveRequest, action: PickRoute) -> Route | None:
        if live.ticket not in self._by_ticket:
            return None
        try:
            route = self._choose(live, action)
            self._feed(live, self._routed(live, action, route))
        except BaseException as error:  # noqa: BLE001 (of one request; others are held behind it)
            self._break(live, error, iter(()), self._loop.time())
            return None
        return route if isinstance(route, Route) else None

    def _choose(self, live: LiveRequest, action: PickRoute) -> Route | Problem:
        return self._routing.choose(live, action, self._rules.route, self._loop.time())

    def _routed(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> Routed | NoRoute:
        prefix = live.prefixes[action.prompt]
        if isinstance(route, Problem):
            self.on_parked()
            return NoRoute(action.run, route, self._routing.is_outlived(live, self._rules.route))
        if live.life.attempts == 0:
            self._tell_prompt(live, action, prefix)
        self._routing.took(route, prefix)
        self._metrics.routed(route)
        self._by_run[action.run] = live
        live.run_ids = (*live.run_ids, action.run)
        line = self._lines.of(live)
        line.told(live.ticket)
        if action.is_first:
            line.sent(live.tenant, route.own_s, route.missing_tokens or action.tokens, self._loop.time())
        return Routed(action.run, route)

    def _tell_prompt(self, live: LiveRequest, action: PickRoute, prefix: tuple[bytes, ...]) -> None:
        cached = min(action.tokens, self._routing.cached_tokens(prefix))
        max_tokens = live.prompts[action.prompt].sampling.max_tokens
        self._metrics.telemetry.prompt(action.tokens, cached, max_tokens, action.choices)
        live.times.prompt_tokens = action.tokens

    def _end(self, live: LiveRequest, action: End, now: float) -> None:
        del self._by_ticket[live.ticket]
        for run in live.run_ids:
            self._by_run.pop(run, None)
        if live.timer is not None:
            live.timer.cancel()
        if live.preparing is not None:
            live.preparing.cancel()
        self._admit(self._admission.leave(live.ticket))
        if not self._by_ticket:
            self._idle.set()
        completion_tokens = 0 if live.request.options.max_tokens == 0 else live.life.completion_tokens()
        life = live.life
        usage = Usage(life.prompt_tokens(), completion_tokens, live.reasoning_tokens(), life.cached_tokens())
        totals = RequestTotals(usage.prompt_tokens, completion_tokens, life.attempts, life.migrations, life.conflicts)
        self._metrics.ended(live.times, action.outcome, totals, now)
        if action.problem is not None and (action.problem.status >= 500 or action.problem.status == 429):
            self._metrics.telemetry.unserved()
        line = self._lines.of(live)
        line.leaves(live.ticket, now)
        if action.outcome is Outcome.FINISHED and live.prompts:
            line.ended(completion_tokens / (len(live.prompts) * live.request.options.n))
        if action.outcome is Outcome.FAILED:
            tell_failure(live.life, action.problem, now, live.request_id)
        if action.outcome is not Outcome.CANCELLED:
            self._end_sink(live, action.problem, usage)

    def _end_sink(self, live: LiveRequest, problem: Problem | None, usage: Usage) -> None:
        try:
            live.sink.end(problem, usage)
        except BaseException as error:  # noqa: BLE001 (its client would be left without an answer)
            live.sink.end(self._problem(error), usage)

    # Preparing --------------------------------------------------------------------------------------------------------

    async def _prepare(self, live: LiveRequest) -> None:
        event: Event
        try:
            revision = self._routing.revision(live.request.options.model, self._rules.route)
            if isinstance(revision, Problem):
                event = self._park(live, revision)
            else:
                event = Prepared(await self._make_prompts(live, revision))
        except BaseException as error:  # noqa: BLE001 (nobody else would end it before its deadline)
            event = Refused(self._problem(error, live.prompt_field))
        live.preparing = None
        self._feed(live, event)

    def _park(self, live: LiveRequest, problem: Problem) -> NoRevision | Refused:
        parked = [other for other in self._by_ticket.values() if other.life.is_parked and other is not live]
        leaving = parked_that_leave(live, parked, self._rules.max_parked, self._rules.max_parked_bytes)
        if leaving is None:
            return Refused(errors.no_workers(self._admission.retry_after_s(live.tenant)))
        for other in leaving:
            self._feed(other, Refused(errors.no_workers(self._admission.retry_after_s(other.tenant))))
        self.on_parked()
        return NoRevision(problem)

    async def _make_prompts(self, live: LiveRequest, fingerprint: PairFingerprint) -> tuple[Prompt, ...]:
        request, options = live.request, live.request.options
        text, limits = self._table.text(fingerprint), self._table.limits(fingerprint)
        assert text is not None
        assert limits is not None
        if options.shape is None:
            encoded, grammar = await self._encode(live, text, limits), None
            if live.reading is not None and live.reading.shape is not None:
                grammar = await self.shapes.compile(live.reading.shape, live.tenant.name)
        else:
            encoded, grammar = await self._encode_and_compile(live, options.shape, text, limits)
        thought: Thought | None = None
        if isinstance(request, ChatRequest):
            thought = thought_of(live.reading, request.max_thinking_tokens, grammar is not None, text)
        seed = self._dice.getrandbits(63)
        defaults = text.bundle.generation if self._rules.generation_defaults else OF_THE_API
        prompts = make_prompts(
            *(options, encoded, text, limits, live.prompt_field, seed, live.tenant.salt, defaults), grammar, thought
        )
        self._begin(live, text, fingerprint, prompts, await echoed_prompts(request, text))
        return prompts

    async def _encode(self, live: LiveRequest, text: TextModel, limits: ModelLimits) -> list[bytes]:
        request = live.request
        if not isinstance(request, ChatRequest):
            return await self.encoder.encode(completion_prompts(request, text, limits), live.tenant.name)
        asked = conversation(request.messages, request.tool_use, request.prompting)
        rendered = await self._templates.render(text.bundle, asked, live.tenant.name, chat_room(text, limits))
        live.reading = chat_reading(request, rendered, text.answer_format)
        return await self.encoder.encode([chat_prompt(rendered, text, limits)], live.tenant.name)

    async def _encode_and_compile(
        self, live: LiveRequest, shape: OutputFormat, text: TextModel, limits: ModelLimits
    ) -> tuple[list[bytes], Grammar]:
        """Both at once: what the client asks for needs nothing of the prompt. Raises the first RefusedError."""
        try:
            async with asyncio.TaskGroup() as both:
                compiling = both.create_task(self.shapes.compile(shape, live.tenant.name))
                encoded = await self._encode(live, text, limits)
        except* RefusedError as refusals:
            raise refusals.exceptions[0] from None
        return encoded, compiling.result()

    def _begin(
        self,
        live: LiveRequest,
        text: TextModel,
        fingerprint: PairFingerprint,
        prompts: tuple[Prompt, ...],
        echoed: tuple[str, ...],
    ) -> None:
        request, options = live.request, live.request.options
        is_chat = isinstance(request, ChatRequest)
        live.text, live.fingerprint, live.prompts = text, fingerprint, prompts
        live.prefixes = tuple(prefix_keys(prompt.packed, prompt.salt) for prompt in prompts)
        live.begin_texts(echoed)
        num_choices = len(live.texts)
        self._metrics.telemetry.branched(num_choices - 1)
        head = ResponseHead(
            endpoint=ApiEndpoint.CHAT if is_chat else ApiEndpoint.COMPLETIONS,
            id=("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12),
            created=int(time.time()),
            model=options.alias or options.model,
            system_fingerprint=f"fp_{fingerprint.model_hash[:12]}",
        )
        usage = options.include_usage, options.continuous_usage, sum(prompt.num_tokens for prompt in prompts)
        size = options.is_held, answer_bytes(request, prompts), token_bytes(options.logprobs)
        live.sink.begin(AnswerHead(head, text, num_choices, *usage, options.logprobs is not None, *size))

    # Timers -----------------------------------------------------------------------------------------------------------

    def _keep_timer(self, live: LiveRequest) -> None:
        if live.ticket not in self._by_ticket:
            return
        wake_at = live.life.wake_at
        if live.timer is not None:
            if live.timer.when() == wake_at and not live.timer.cancelled():
                return
            live.timer.cancel()
        live.timer = self._loop.call_at(wake_at, self._tick, live)

    def _tick(self, live: LiveRequest) -> None:
        live.timer = None
        self._feed(live, Tick())

    def _admit(self, tickets: list[int]) -> None:
        for ticket in tickets:
            self._loop.call_soon(self._admit_one, ticket)

    def _admit_one(self, ticket: int) -> None:
        live = self._by_ticket.get(ticket)
        if live is not None:
            now = self._loop.time()
            self._metrics.admitted(live.times, now)
            self._lines.of(live).begins(ticket, now)
            self._feed(live, Admitted())

    def _keep_admission_timer(self) -> None:
        if self._admission_timer is not None:
            self._admission_timer.cancel()
            self._admission_timer = None
        if (expiry := self._admission.next_expiry()) < float("inf"):
            self._admission_timer = self._loop.call_at(expiry, self._expire_waiting)

    def _expire_waiting(self) -> None:
        self._admission_timer = None
        for ticket in self._admission.expired(self._loop.time()):
            live = self._by_ticket[ticket]
            self._feed(live, Refused(errors.queue_timeout(self._admission.retry_after_s(live.tenant))))
        self._keep_admission_timer()
