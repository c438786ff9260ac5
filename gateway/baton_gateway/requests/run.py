"""A run, the part of a request that workers see: its legs' messages, and whether it is tried again. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.requests.request_events import Arrived, LifeRules, Prompt, Send
from baton_gateway.requests.retry_budget import RetryBudget
from baton_gateway.workers.route import Route
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import Prefill, Reserve, Retarget
from baton_wire.messages.values import MAX_CONTEXT_TOKENS, PeerRef, Reason, TokenEntry, pack_ids

LEAST_S = 0.001
"""Workers need a positive time left; the gateway itself ends a request whose deadline has passed."""

REFUSED_WITHIN_S = 1.0
MOST_REFUSED_LINKS = 2
BROKEN_WITHIN_S = 0.25
MOST_BROKEN_LINKS = 3


class RunState(enum.Enum):
    ROUTING = enum.auto()  # a PickRoute is out
    RUNNING = enum.auto()  # at least the decode leg is open
    BACKING_OFF = enum.auto()  # routes again at `resume_at`
    UNROUTED = enum.auto()  # waits for workers until `resume_at`
    DONE = enum.auto()


@dataclass(slots=True, eq=False)
class Run:
    """The unfinished choices of one prompt, under a request id of their own at the workers."""

    request: bytes
    prompt: int
    choices: set[int]
    attempt: int = 0
    state: RunState = RunState.ROUTING
    prefill: bytes | None = None
    decode: bytes = b""
    landed: bool = False
    """The decode worker has produced tokens: the prefill leg has ended well."""
    progressed: bool = False
    """This attempt brought a token that is new to the client."""
    moved_s: float = math.inf
    """When the attempt began or last brought a token; infinite before the first attempt."""
    sent_s: float = math.inf
    """When the attempt was sent to its workers."""
    failures: int = 0
    losses: int = 0
    failed_by: frozenset[bytes] = field(default_factory=frozenset)
    """Workers that failed the run since its last new token. Lost workers are not among them."""
    failed_s: float = math.inf
    """When the first of these workers failed it."""
    is_only_full: bool = True
    """True while every failure was for lack of room."""
    refused_links: int = 0
    """Links that workers ended for what they were sent, soon after this run's first message, before any token."""
    broken_links: int = 0
    """Links that broke right after this run was sent."""
    avoid: frozenset[bytes] = field(default_factory=frozenset)
    resume_at: float = math.inf
    unrouted_since: float | None = None

    base: int = 0
    """Tokens of each choice that this attempt's prefill started from, beyond the prompt."""
    held: list[Arrived] = field(default_factory=list)
    """Tokens of the decode worker that wait for the prompt's log probabilities."""
    asked: frozenset[int] = frozenset()
    """The choices that this attempt's prefill draws first tokens for."""
    retained_by: bytes | None = None
    """The prefill worker that retains the KV of `attempt` for another decode worker."""

    @property
    def has_run(self) -> bool:
        """Return whether workers had it before, perhaps as part of another run that it was split from."""
        return self.attempt + self.failures + self.losses > 0

    def uses(self, worker: bytes) -> bool:
        """Return whether losing this worker ends the attempt."""
        if self.state is not RunState.RUNNING:
            return False
        return worker == self.decode or (worker == self.prefill and not self.landed)

    def ends_links(self, is_refusal: bool, now: float) -> bool:
        """Count a lost link that it used. Returns whether this run is the likely cause, because it happened before.

        A broken link says less than one that its worker closed: workers are killed and networks cut for other reasons.
        So the time is shorter for broken links, and it takes one more of them.
        """
        if self.landed or self.progressed:
            self.refused_links = self.broken_links = 0
            return False
        self.refused_links += is_refusal and now - self.sent_s <= REFUSED_WITHIN_S
        self.broken_links += now - self.sent_s <= BROKEN_WITHIN_S
        return self.refused_links >= MOST_REFUSED_LINKS or self.broken_links >= MOST_BROKEN_LINKS

    def stalls_at(self, rules: LifeRules) -> float:
        """When the attempt is given up if no token arrives."""
        if self.state is not RunState.RUNNING:
            return math.inf
        return self.moved_s + (rules.stall_s if self.landed else rules.first_stall_s)

    def open_legs(self) -> tuple[bytes, ...]:
        if self.state is not RunState.RUNNING:
            return () if self.retained_by is None else (self.retained_by,)
        return (self.decode,) if self.landed or self.prefill is None else (self.decode, self.prefill)


@dataclass(slots=True, eq=False)
class Choice:
    """One answer to a prompt. `run` is None before the prompts are built and after the end of the choice."""

    ids: list[int] = field(default_factory=list)
    """Delivered tokens."""
    run: Run | None = None

    def repeats(self, entry: TokenEntry) -> bool:
        """Return whether the entry repeats delivered tokens unchanged. The entry leaves no gap."""
        return all(old == new for old, new in zip(self.ids[entry.first_index :], entry.ids, strict=False))


def start_legs(  # noqa: PLR0913 - one call site; the run's machine owns each of these values
    run: Run,
    route: Route,
    prompt: Prompt,
    forced: list[int],
    n: int,
    left_s: float,
    flow: bytes,
    tpot_s: float | None,
    trace_id: bytes | None = None,
) -> list[Send]:
    """Messages for both legs, the decode worker's first. `forced`: tokens generated before this attempt; `n`: choices
    per prompt; `flow`: names the client's request, whose runs share one turn; `tpot_s`: the decode worker's target;
    `trace_id`: the request's trace, where it is sampled.
    """
    if prompt.encoding is not None:
        what = (prompt.packed, prompt.encoding, max(left_s, LEAST_S), prompt.salt)
        encode = Encode(run.request, run.attempt, *what, flow, prompt.num_tokens)
        return [Send(route.decode, encode, prompt.num_tokens)]
    tokens = prompt.packed + pack_ids(forced)
    choices = tuple(sorted(choice % n for choice in run.choices))
    common = (tokens, prompt.num_tokens, choices, prompt.sampling, max(left_s, LEAST_S), prompt.salt)
    missing = None if route.missing_tokens is None else min(route.missing_tokens, MAX_CONTEXT_TOKENS)
    if route.prefill is None or route.decode_address is None:
        reserve = Reserve(run.request, run.attempt, *common, None, flow, tpot_s, missing)
        return [Send(route.decode, reserve, missing)]
    reserve = Reserve(run.request, run.attempt, *common, route.prefill, flow, tpot_s, None, trace_id)
    decode = PeerRef(route.decode_address, route.decode)
    prefill = Prefill(run.request, run.attempt, *common, decode, flow, missing, trace_id)
    return [Send(route.decode, reserve, route.received_tokens), Send(route.prefill, prefill, missing)]


def retarget(run: Run, route: Route, left_s: float) -> Send:
    """The message that sends the KV of the attempt before this one from its prefill worker to another decode worker."""
    assert route.prefill is not None
    assert route.decode_address is not None
    peer = PeerRef(route.decode_address, route.decode)
    return Send(route.prefill, Retarget(run.request, run.attempt - 1, run.attempt, max(left_s, LEAST_S), peer))


def decide_retry(
    run: Run, at_fault: bytes, reason: Reason, rules: LifeRules, budget: RetryBudget, now: float, *, has_begun: bool
) -> float | Problem:
    """Seconds until the next attempt after one that `at_fault` ended for `reason`, or the client's error instead.

    Counts the attempt. A worker that was to be avoided and fails the run again was the only one to choose from: the
    next attempt waits for the longest back-off, in which another worker may come back. `has_begun`: the client has
    tokens already. Such a stream waits for room, where a new request is refused so that its client can go elsewhere.
    """
    if reason in _FINAL:
        return _FINAL[reason]()
    is_repeated = at_fault in run.avoid and not run.progressed
    if run.progressed:
        run.failures = run.losses = 0
        run.failed_by, run.failed_s, run.is_only_full = frozenset(), math.inf, True
    if reason in _WORKER_GONE:
        run.losses += 1
        return _backoff(run.losses, rules) if run.losses < rules.max_losses else errors.retries_exhausted()
    is_full = reason is Reason.NO_CAPACITY
    run.failed_by, run.failed_s = run.failed_by | {at_fault}, min(run.failed_s, now)
    run.is_only_full &= is_full
    is_repeated &= has_begun or not run.is_only_full
    is_soon = now - run.failed_s <= rules.patience_s
    speaks_against_worker = is_repeated and len(run.failed_by) == 1
    run.failures += not (is_soon and (speaks_against_worker or (is_full and has_begun)))
    if run.failures >= rules.max_failures or not budget.withdraw(now):
        return errors.no_capacity() if is_full else errors.retries_exhausted()
    return rules.max_backoff_s if is_repeated else _backoff(max(run.failures, 1) + is_full, rules)


def retaining_worker(run: Run, at_fault: bytes, reason: Reason, delivered: int) -> bytes | None:
    """The prefill worker whose KV can go to another decode worker; None: no KV can. `delivered`: the most tokens of a
    choice that the client has. The hand-over repeats each choice's first token, and no other.
    """
    begun = run.landed or run.choices != run.asked or delivered > run.base + 1
    return None if begun or at_fault != run.decode or reason in _SPOILT else run.prefill


def worker_at_fault(run: Run, worker: bytes, reason: Reason) -> bytes:
    """The worker to avoid next time: not a decode worker that lost its prefill worker."""
    if worker == run.decode and run.prefill is not None and reason is Reason.PEER_LOST:
        return run.prefill
    return worker


def _backoff(times: int, rules: LifeRules) -> float:
    return 0.0 if times <= 1 else min(rules.max_backoff_s, rules.backoff_s * 2.0 ** (times - 2))


_FINAL: dict[Reason, Callable[[], Problem]] = {
    Reason.TOO_LONG: errors.too_long_for_workers,
    Reason.DEADLINE: errors.deadline_exceeded,
    Reason.BAD_REQUEST: errors.worker_refused,
    Reason.GRAMMAR: errors.grammar_failed,
}
"""Reasons after which another attempt cannot help."""

_WORKER_GONE = frozenset({Reason.PEER_LOST, Reason.DRAINING, Reason.UNKNOWN_REQUEST})
"""Reasons that say nothing about the request: bounded apart and outside the budget."""

_SPOILT = frozenset({Reason.KV_CORRUPT, Reason.STALLED})
"""Reasons after which the KV must not be reused."""
