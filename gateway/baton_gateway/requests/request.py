"""The life of one client request, as a machine `(event, now) → actions`: admitted, prepared, routed, run on two legs,
retried or migrated when a leg fails, its tokens delivered by index, once, from one attempt; ended exactly once.

No clock, no I/O, no text: `relay` carries the actions out and finds stop strings. A request has one or more prompts and
`n` choices for each, numbered through (prompt × n + choice). The workers see *runs*: a request id and attempt with the
choices of one prompt. Before its first token a run is retried unchanged; afterwards each choice continues alone from
its delivered tokens (forced prefix), under an id of its own when `n` > 1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.reporting.outcome import Outcome
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
    LifeRules,
    LostAttempt,
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
from baton_gateway.requests.retry_budget import RetryBudget
from baton_gateway.requests.run import (
    Choice,
    Run,
    RunState,
    decide_retry,
    retaining_worker,
    retarget,
    start_legs,
    worker_at_fault,
)
from baton_gateway.requests.token_validation import (
    find_encoded_fault,
    find_entry_fault,
    find_logprobs_fault,
    read_logprobs,
)
from baton_gateway.workers.route import Route
from baton_wire.messages.gateway_link import Cancel
from baton_wire.messages.values import Finish, Reason, TokenLogprob


class Stage(enum.Enum):
    QUEUED = enum.auto()
    PREPARING = enum.auto()
    PARKED = enum.auto()  # until a revision can be served or `_parked_until`
    RUNNING = enum.auto()
    ENDED = enum.auto()


class RequestLife:
    """One client request from its arrival to its end."""

    def __init__(
        self, request: bytes, n: int, deadline_s: float, rules: LifeRules, budget: RetryBudget, now: float
    ) -> None:
        """`request` is a fresh random id; `deadline_s` and `now` are on the same clock."""
        self.stage = Stage.QUEUED
        self.deadline_s = deadline_s
        self.arrived_s = now
        self.attempts = 0
        self.migrations = 0
        self.conflicts = 0
        """Attempts in which a worker repeated a delivered token differently."""
        self.lost_attempts: list[LostAttempt] = []
        """Attempts that ended without their results and that were not looked at yet."""
        self.flow = request
        """The id under which this request, or all of its tenant's, share one turn at the workers."""
        self.trace_id: bytes | None = None
        """The trace that it belongs to; None: it is not sampled."""
        self._request = int.from_bytes(request)
        self._n = n
        self._rules = rules
        self._budget = budget
        self._prompts: tuple[Prompt, ...] = ()
        self._num_scored: list[int] = []
        """Tokens of each prompt before the first one whose log probability is missing."""
        self._choices: list[Choice] = []
        self._cached: dict[int, int] = {}
        """Tokens of each prompt that a worker's prefix cache had, as reported."""
        self._runs: dict[bytes, Run] = {}
        self.last_runs: tuple[Run, ...] = ()
        """The runs that were open at the end."""
        self._num_runs = 0
        self._open_choices = 0
        self._parked_until = math.inf
        budget.request()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; the actions are to be carried out in order."""
        if self.stage is Stage.ENDED:
            return []
        return _HANDLERS[type(event)](self, event, now)

    @property
    def wake_at(self) -> float:
        """When a Tick is due. Never in the past of the last event by more than the tick itself."""
        waits = (min(run.resume_at, run.stalls_at(self._rules)) for run in self._runs.values())
        parked_until = self._parked_until if self.stage is Stage.PARKED else math.inf
        return min(self.deadline_s, parked_until, min(waits, default=math.inf))

    @property
    def is_parked(self) -> bool:
        """Return whether it waits for a pair of workers to appear."""
        return self.stage is Stage.PARKED or any(run.state is RunState.UNROUTED for run in self._runs.values())

    @property
    def sequences_at_work(self) -> int:
        """Unfinished choices that are at workers."""
        return sum(len(run.choices) for run in self._runs.values() if run.state is RunState.RUNNING)

    def completion_tokens(self) -> int:
        return sum(len(choice.ids) for choice in self._choices)

    def attempt_of(self, run: bytes) -> int:
        """Return the number of a run's latest attempt; 0: it had none, or it is over."""
        return 0 if (known := self._runs.get(run)) is None else known.attempt

    def prompt_tokens(self) -> int:
        return sum(prompt.num_tokens for prompt in self._prompts)

    def cached_tokens(self) -> int | None:
        """Tokens of the prompts that prefix caches had; None until each prompt's worker has reported it."""
        return sum(self._cached.values()) if len(self._cached) == len(self._prompts) > 0 else None

    # Beginning --------------------------------------------------------------------------------------------------------

    def _admitted(self, event: Admitted, now: float) -> list[Action]:
        if self.stage is not Stage.QUEUED:
            return []
        self.stage = Stage.PREPARING
        return [Prepare()]

    def _refused(self, event: Refused, now: float) -> list[Action]:
        return self._end(Outcome.REFUSED if self.attempts == 0 else Outcome.FAILED, event.problem)

    def _prepared(self, event: Prepared, now: float) -> list[Action]:
        if self.stage is not Stage.PREPARING:
            return []
        self.stage = Stage.RUNNING
        self._prompts = event.prompts
        self._num_scored = [1] * len(event.prompts)
        self._choices = [Choice() for _ in range(len(event.prompts) * self._n)]
        self._open_choices = len(self._choices)
        runs = [self._new_run(p, set(range(p * self._n, (p + 1) * self._n))) for p in range(len(event.prompts))]
        return [self._pick(run) for run in runs]

    def _no_revision(self, event: NoRevision, now: float) -> list[Action]:
        self._parked_until = min(self._parked_until, now + self._rules.park_s)
        if now >= self._parked_until:
            return self._end(Outcome.REFUSED, event.problem)
        self.stage = Stage.PARKED
        return []

    def _new_run(self, prompt: int, choices: set[int]) -> Run:
        request = (self._request ^ self._num_runs).to_bytes(16)
        self._num_runs += 1
        run = self._runs[request] = Run(request, prompt, choices)
        for choice in choices:
            self._choices[choice].run = run
        return run

    # Routing ----------------------------------------------------------------------------------------------------------

    def _pick(self, run: Run) -> PickRoute:
        run.state = RunState.ROUTING
        run.resume_at = math.inf
        prompt = self._prompts[run.prompt]
        return PickRoute(
            run=run.request,
            prompt=run.prompt,
            tokens=prompt.num_tokens + len(self._forced(run)),
            total_tokens=prompt.num_tokens + prompt.sampling.max_tokens,
            choices=len(run.choices),
            avoid=run.avoid,
            retained_by=run.retained_by,
            is_first=not run.has_run,
        )

    def _forced(self, run: Run) -> list[int]:
        """Tokens that the client already has of a run; empty unless the run has one choice."""
        return self._choices[next(iter(run.choices))].ids if len(run.choices) == 1 else []

    def _routed(self, event: Routed, now: float) -> list[Action]:
        run = self._runs.get(event.run)
        if run is None or run.state is not RunState.ROUTING:
            return []
        route = event.route
        run.state = RunState.RUNNING
        run.attempt += 1
        run.prefill, run.decode = route.prefill, route.decode
        run.landed = run.progressed = False
        run.held.clear()
        run.moved_s = run.sent_s = now
        self.attempts += 1
        self.migrations += bool(self._forced(run))
        retained_by, run.retained_by = run.retained_by, None
        if retained_by is not None and retained_by == route.prefill:
            return [retarget(run, route, self.deadline_s - now), self._start_legs(run, route, now)[0]]
        cancels = [] if retained_by is None else [Send(retained_by, Cancel(run.request, run.attempt - 1))]
        run.base, run.asked = len(self._forced(run)), frozenset(run.choices)
        return [*cancels, *self._start_legs(run, route, now)]

    def _start_legs(self, run: Run, route: Route, now: float) -> list[Action]:
        prompt, forced = self._prompts[run.prompt], self._forced(run)[: run.base]
        left_s, tpot_s = self.deadline_s - now, self._rules.tpot_s
        return [*start_legs(run, route, prompt, forced, self._n, left_s, self.flow, tpot_s, self.trace_id)]

    def _no_route(self, event: NoRoute, now: float) -> list[Action]:
        run = self._runs.get(event.run)
        if run is None or run.state is not RunState.ROUTING:
            return []
        if event.is_superseded and self._is_unanswered():
            return self._prepare_again()
        patience_s = self._rules.reroute_wait_s if run.has_run else self._rules.park_s
        if patience_s <= 0:
            return self._end(Outcome.REFUSED if self.attempts == 0 else Outcome.FAILED, event.problem)
        if run.unrouted_since is None:
            run.unrouted_since = now
        if now >= run.unrouted_since + patience_s:
            return self._end(Outcome.FAILED, event.problem)
        run.state = RunState.UNROUTED
        run.resume_at = run.unrouted_since + patience_s
        return []

    def _is_unanswered(self) -> bool:
        """Return whether the client has no token and no worker runs it, so that any revision may answer."""
        is_running = any(run.state is RunState.RUNNING for run in self._runs.values())
        return not is_running and not any(choice.ids for choice in self._choices)

    def _prepare_again(self) -> list[Action]:
        """Begin again with another revision, which cannot use KV that prefill workers retain."""
        self.stage = Stage.PREPARING
        cancels = [cancel for run in self._runs.values() for cancel in self._cancel_legs(run)]
        self._runs.clear()
        self._prompts, self._choices, self._open_choices = (), [], 0
        self._cached.clear()
        return [*cancels, Prepare()]

    def _routes_changed(self, event: RoutesChanged, now: float) -> list[Action]:
        if self.stage is Stage.PARKED:
            self.stage = Stage.PREPARING
            return [Prepare()]
        return [self._pick(run) for run in self._runs.values() if run.state is RunState.UNROUTED]

    # Tokens -----------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float) -> list[Action]:
        entry = event.entry
        run = self._current(event.worker, entry.request, entry.attempt)
        if run is None or (number := run.prompt * self._n + entry.choice) not in run.choices:
            return []
        prompt, end = self._prompts[run.prompt], entry.first_index + len(entry.ids)
        sampling = prompt.sampling
        is_odd = end > sampling.max_tokens or max(entry.ids) >= prompt.vocab_size
        logprobs = None if sampling.logprobs is None else read_logprobs(entry)
        if (is_odd or sampling.logprobs is not None) and find_entry_fault(entry, logprobs, prompt) is not None:
            return self._fail_implausible(run, event.worker, now)
        run.moved_s = now
        if event.worker == run.decode and not self._is_scored(run.prompt):
            run.held.append(event)  # the prompt's log probabilities come over the prefill worker's link, perhaps later
            return []
        if event.worker == run.decode:
            run.landed = True
        if entry.cached_tokens is not None:
            self._cached.setdefault(run.prompt, min(entry.cached_tokens, self._prompts[run.prompt].num_tokens))
        choice = self._choices[number]
        known = len(choice.ids) - entry.first_index
        is_same = known < 0 or choice.repeats(entry)
        if known < 0 or not is_same:
            self.conflicts += not is_same
            cancel = Send(event.worker, Cancel(run.request, run.attempt))
            return [cancel, *self._fail(run, event.worker, Reason.INTERNAL if is_same else Reason.KV_CORRUPT, now)]
        finish = entry.finish
        if finish is None and end == sampling.max_tokens:
            finish = Finish.LENGTH  # even if the worker does not say so: no token can follow
        if known >= len(entry.ids) and finish is None:
            return []
        new = entry.ids[known:]
        return self._deliver(run, number, new, None if logprobs is None else logprobs[known:], finish)

    def _fail_implausible(self, run: Run, worker: bytes, now: float) -> list[Action]:
        """Retry a run for which its worker sent impossible values: another worker may do better."""
        cancel = Send(worker, Cancel(run.request, run.attempt))
        return [cancel, *self._fail(run, worker, Reason.INTERNAL, now)]

    def _current(self, worker: bytes, request: bytes, attempt: int) -> Run | None:
        """The run, if this is its current attempt and the worker takes part in it."""
        run = self._runs.get(request)
        if run is None or run.state is not RunState.RUNNING or attempt != run.attempt:
            return None
        return run if worker in (run.decode, run.prefill) else None

    def _prompt_arrived(self, event: PromptArrived, now: float) -> list[Action]:
        message = event.message
        run = self._current(event.worker, message.request, message.attempt)
        if run is None:
            return []
        if find_logprobs_fault(message, self._prompts[run.prompt]) is not None:
            return self._fail_implausible(run, event.worker, now)
        run.moved_s = now
        if message.first_index <= self._num_scored[run.prompt]:
            end = message.first_index + len(message.logprobs)
            self._num_scored[run.prompt] = max(self._num_scored[run.prompt], end)
        actions: list[Action] = [DeliverPrompt(run.prompt, message.first_index, message.logprobs)]
        if self._is_scored(run.prompt):
            held, run.held = run.held, []
            for arrived in held:
                actions += self._arrived(arrived, now)
        return actions

    def _encoded_arrived(self, event: EncodedArrived, now: float) -> list[Action]:
        message = event.message
        run = self._current(event.worker, message.request, message.attempt)
        if run is None:
            return []
        if find_encoded_fault(message, self._prompts[run.prompt]) is not None:
            return self._fail_implausible(run, event.worker, now)
        run.moved_s, run.landed, run.progressed = now, True, True
        (number,) = run.choices
        return [DeliverEncoded(run.prompt, message.values), *self._finish_choice(run, number)]

    def _is_scored(self, prompt: int) -> bool:
        """Return whether tokens may be delivered: the prompt's log probabilities, if wanted, come first."""
        scored = self._prompts[prompt]
        return scored.sampling.prompt_logprobs is None or self._num_scored[prompt] >= scored.num_tokens

    def _deliver(
        self,
        run: Run,
        number: int,
        ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] | None,
        finish: Finish | None,
    ) -> list[Action]:
        choice = self._choices[number]
        is_first = not choice.ids
        choice.ids += ids
        run.progressed = True
        actions: list[Action] = [Deliver(number, ids, logprobs, finish, is_first)]
        if finish is not None:
            actions += self._finish_choice(run, number)
        return actions

    def _stop_found(self, event: StopFound, now: float) -> list[Action]:
        choice = self._choices[event.choice]
        del choice.ids[event.tokens :]
        run = choice.run
        if run is None:
            return []
        if len(run.choices) == 1:
            return [*self._cancel_legs(run), *self._finish_choice(run, event.choice)]
        cancel = Send(run.decode, Cancel(run.request, run.attempt, event.choice % self._n))
        return [cancel, *self._finish_choice(run, event.choice)]

    def _finish_choice(self, run: Run, number: int) -> list[Action]:
        self._choices[number].run = None
        run.choices.discard(number)
        if not run.choices:
            self._close(run)
        self._open_choices -= 1
        return self._end(Outcome.FINISHED) if self._open_choices == 0 else []

    # Failures ---------------------------------------------------------------------------------------------------------

    def _leg_ended(self, event: LegEnded, now: float) -> list[Action]:
        message = event.message
        run = self._runs.get(message.request)
        if run is None or run.attempt != message.attempt:
            return []
        if run.retained_by == event.worker and not message.kept:
            run.retained_by = None
        if not run.uses(event.worker):
            return []
        return self._fail(run, event.worker, message.reason, now, is_retained=message.kept)

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Action]:
        actions: list[Action] = []
        for run in self._runs.values():
            run.retained_by = None if run.retained_by == event.worker else run.retained_by
        for run in [run for run in self._runs.values() if run.uses(event.worker)]:
            if run.ends_links(event.is_refusal, now):
                return [*actions, *self._end(Outcome.FAILED, errors.links_ended())]
            actions += self._fail(run, event.worker, Reason.PEER_LOST, now, is_gone=True)
            if self.stage is Stage.ENDED:
                break
        return actions

    def _fail(
        self, run: Run, worker: bytes, reason: Reason, now: float, is_gone: bool = False, is_retained: bool = False
    ) -> list[Action]:
        """The attempt is over: stop its other leg, then retry within the rules, each choice from its last token."""
        delivered = max(len(self._choices[choice].ids) for choice in run.choices)
        at_fault = run.decode if is_retained else worker if is_gone else worker_at_fault(run, worker, reason)
        self.lost_attempts.append(LostAttempt(run.request, run.attempt, at_fault, reason))
        retained_by = retaining_worker(run, at_fault, reason, delivered)
        cancels = [action for action in self._cancel_legs(run) if is_retained or action.worker != worker]
        verdict = decide_retry(run, at_fault, reason, self._rules, self._budget, now, has_begun=delivered > 0)
        run.avoid |= {at_fault}
        if isinstance(verdict, Problem):
            run.state = RunState.DONE
            return [*cancels, *self._end(Outcome.FAILED, verdict)]
        run.retained_by = retained_by
        cancels = [action for action in cancels if action.worker != retained_by]
        run.unrouted_since = None
        runs = self._split(run)
        if verdict <= 0:
            return [*cancels, *(self._pick(retried) for retried in runs)]
        for retried in runs:
            retried.state = RunState.BACKING_OFF
            retried.resume_at = now + verdict
        return [*cancels]

    def _split(self, run: Run) -> list[Run]:
        """The run itself, or one run for each of its choices when they no longer begin with the same ids."""
        begun = any(self._choices[choice].ids for choice in run.choices)
        if run.retained_by is not None or len(run.choices) == 1 or not begun:
            return [run]
        alone = []
        for choice in sorted(run.choices):
            single = self._new_run(run.prompt, {choice})
            single.failures, single.losses, single.avoid = run.failures, run.losses, run.avoid
            single.failed_by, single.failed_s, single.is_only_full = run.failed_by, run.failed_s, run.is_only_full
            single.refused_links, single.broken_links = run.refused_links, run.broken_links
            alone.append(single)
        self._close(run)
        return alone

    def _tick(self, event: Tick, now: float) -> list[Action]:
        if now >= self.deadline_s:
            return self._end(Outcome.FAILED, errors.deadline_exceeded())
        if self.stage is Stage.PARKED and now >= self._parked_until:
            return self._end(Outcome.REFUSED, errors.no_workers())
        actions: list[Action] = [self._pick(run) for run in self._runs.values() if run.resume_at <= now]
        for run in [run for run in self._runs.values() if run.stalls_at(self._rules) <= now]:
            actions += self._stalled(run, now)
            if self.stage is Stage.ENDED:
                break
        return actions

    def _stalled(self, run: Run, now: float) -> list[Action]:
        """No token arrives although its workers live: cancel it there, and try other workers."""
        cancel = Send(run.decode, Cancel(run.request, run.attempt))
        if not run.landed and run.prefill is not None:
            run.avoid |= {run.prefill}
        return [cancel, *self._fail(run, run.decode, Reason.STALLED, now)]

    # End --------------------------------------------------------------------------------------------------------------

    def _client_gone(self, event: ClientGone, now: float) -> list[Action]:
        return self._end(Outcome.CANCELLED)

    def _cancel_legs(self, run: Run) -> list[Send]:
        return [Send(worker, Cancel(run.request, run.attempt)) for worker in run.open_legs()]

    def _close(self, run: Run) -> None:
        run.state = RunState.DONE
        del self._runs[run.request]

    def _end(self, outcome: Outcome, problem: Problem | None = None) -> list[Action]:
        """End the request; called exactly once."""
        self.stage = Stage.ENDED
        cancels = [cancel for run in self._runs.values() for cancel in self._cancel_legs(run)]
        self.last_runs = tuple(self._runs.values())
        self._runs.clear()
        return [*cancels, End(outcome, problem)]


_HANDLERS: dict[type, Callable[..., list[Action]]] = {
    Admitted: RequestLife._admitted,
    Refused: RequestLife._refused,
    Prepared: RequestLife._prepared,
    NoRevision: RequestLife._no_revision,
    Routed: RequestLife._routed,
    NoRoute: RequestLife._no_route,
    RoutesChanged: RequestLife._routes_changed,
    Arrived: RequestLife._arrived,
    PromptArrived: RequestLife._prompt_arrived,
    EncodedArrived: RequestLife._encoded_arrived,
    LegEnded: RequestLife._leg_ended,
    WorkerLost: RequestLife._worker_lost,
    StopFound: RequestLife._stop_found,
    ClientGone: RequestLife._client_gone,
    Tick: RequestLife._tick,
}
