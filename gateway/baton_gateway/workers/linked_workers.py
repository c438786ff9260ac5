"""The linked workers: their reports, what was sent to them since, and the snapshot that routing uses.

Plain bookkeeping; `links` has the sockets.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baton_gateway.text.revision_text import TextModel
from baton_gateway.workers.cached_places import CachedPlacesBook
from baton_gateway.workers.kv_reads import KvReads
from baton_gateway.workers.piece_costs import PieceCosts
from baton_gateway.workers.prompt_costs import PromptCosts
from baton_gateway.workers.request_limits import BodyLimits, ModelLimits, body_limits
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.liveness import REPORT_S
from baton_wire.messages.encoding import Encode, EncodingLimits
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    Cancel,
    Flip,
    Hello,
    Holding,
    Prefill,
    Reserve,
    Retarget,
    WorkerState,
)
from baton_wire.messages.measures import MAX_TIMINGS, StepTiming, WorkerCondition
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.gateway_rounds import RoundPosition

SPREAD = 0.01
"""The least variance of the steps' tokens, relative to their squared mean, from which a slope can be estimated."""
LEAST_SHARE = 0.1
"""The least slope, as a share of the mean: smaller ones are noise."""
FADING = 0.9
"""The weight of a prompt step relative to the next one."""
VIEW_S = 0.005
"""A view is made anew after this long: load shrinks by the clock."""
STUCK_S = 1.0
STUCK_TIMES = 4.0
"""A step that takes this many times as long as its prompts usually do, and `STUCK_S` more, may never end."""
LOAD_S = 60.0
"""In the load of a while, tokens that were computed this long ago count 1/e of new ones."""
RATE_S = 2.0
"""In rates, tokens that arrived or were computed this long ago count 1/e of new ones."""


@dataclass(slots=True, eq=False)
class LinkedWorker:
    """One worker process with a live link."""

    hello: Hello
    address: Address
    """The address at which the gateway dialled it."""
    text: TextModel
    send: Callable[[Prefill | Reserve | Encode | Retarget | Cancel | Flip | Holding | AskCachedPlaces], bool]
    """Queue a message; False when the link is gone."""
    clock: Callable[[], float] = time.monotonic
    state: WorkerState | None = None
    has_implausible_load: bool = False
    """Its latest state reported an impossible load."""
    reported_role: Role | None = None
    reported_flip: int = 0
    """The highest flip number that it reported: a state with a lower one does not change its role."""
    computing_since_s: float = 0.0
    """When the oldest unfinished step was first reported."""
    is_suspect: bool = False
    sent_sequences: int = 0
    """Sequences sent since the last report."""
    sent_tokens: int = 0
    sent_prompts: int = 0
    """Tokens sent since the last report for this worker to compute."""
    done_prompts: int = 0
    """Prompt tokens sent from here whose results came since the last report."""
    ended_sequences: int = 0
    """Sequences sent from here that ended since the last report."""
    turn_taken_s: float = 0.0
    """Seconds of work that were sent in this gateway's turn, if this worker gives out turns."""
    timings: deque[StepTiming] = field(default_factory=lambda: deque(maxlen=MAX_TIMINGS))
    """Reported steps since `take_timings`."""

    prefill_s: float = 0.0
    """Seconds and tokens of its pure prompt steps, older ones decayed."""
    prefill_tokens: float = 0.0
    prefill_steps: float = 0.0
    prefill_squares: float = 0.0
    prefill_products: float = 0.0
    """Decayed sums over pure prompt steps: their number, tokens × tokens and tokens × seconds."""
    piece_costs: PieceCosts = field(default_factory=PieceCosts)
    kv_reads: KvReads = field(default_factory=KvReads)
    prompt_costs: PromptCosts = field(default_factory=PromptCosts)
    piece_s: float = 0.0
    piece_tokens: float = 0.0
    """Seconds and prompt tokens of steps with rows and prompts, older ones decayed."""
    rows: int = 0
    """Sequences that decoded in the latest reported step; 0 once nothing runs."""
    followed_s: float = 0.0
    """How long its rates have been tracked, until the latest report."""
    reported_s: float | None = None
    seed: int = 0
    """A number of its own, for draws: the same in all gateway processes."""
    lately_tokens: float = 0.0
    """Prompt tokens that it computed or was sent until the latest report, decayed more slowly than those below."""
    fingerprint: PairFingerprint | None = None
    """The fingerprint of its Hello, the same object for all workers of a revision; None: it is in no table."""
    _view: WorkerView | None = None
    _viewed_s: float = 0.0
    computed_tokens: float = 0.0
    """Prompt tokens that it computed until the latest report, by its reports; older ones decayed."""
    usual_used_blocks: float = 0.0
    """Blocks that its sequences needed, on average over the last `RATE_S`."""
    came_tokens: float = 0.0
    """Prompt tokens that were sent to it to compute until the latest report; older ones decayed."""

    @property
    def role(self) -> Role:
        """Its role now, as reported with its latest flip."""
        return self.hello.role if self.reported_role is None else self.reported_role

    @property
    def condition(self) -> WorkerCondition:
        if self.state is not None and self.state.draining:
            return WorkerCondition.DRAINING
        return WorkerCondition.SUSPECT if self.is_suspect else WorkerCondition.LIVE

    def flip(self, number: int, role: Role) -> bool:
        """Send the order to take this role, unless the worker has reported this flip or a later one. False: it cannot
        flip. The worker itself ignores an order that comes too late.
        """
        if self.hello.flips and self.reported_flip < number:
            self.send(Flip(number, role))
        return self.hello.flips

    def take_timings(self) -> tuple[StepTiming, ...]:
        timings = tuple(self.timings)
        self.timings.clear()
        return timings

    def record_report(self, state: WorkerState) -> None:
        self._view = None
        before, self.state = self.state, state
        if state.flip >= self.reported_flip:
            self.reported_role, self.reported_flip = state.role, state.flip
        if before is None or state.steps != before.steps or not before.computing_tokens:
            self.computing_since_s = self.clock()
        self.timings.extend(state.timings)
        if state.timings:
            self.rows = state.timings[-1].decode_rows
        if not state.running:
            self.rows = 0
        for timing in state.timings:
            self.kv_reads.observe(timing)
            self.prompt_costs.observe(timing)
            if timing.prefill_tokens and timing.decode_rows:
                self.piece_s = FADING * self.piece_s + timing.seconds
                self.piece_tokens = FADING * self.piece_tokens + timing.prefill_tokens
            elif timing.prefill_tokens:
                self.prefill_s = FADING * self.prefill_s + timing.seconds
                tokens = timing.prefill_tokens
                self.prefill_tokens = FADING * self.prefill_tokens + tokens
                self.prefill_steps = FADING * self.prefill_steps + 1
                self.prefill_squares = FADING * self.prefill_squares + tokens * tokens
                self.prefill_products = FADING * self.prefill_products + tokens * timing.seconds
        self.piece_costs.observe(state.timings, self.clock())
        self._follow_rates(before)
        self.sent_sequences = self.sent_tokens = self.sent_prompts = 0
        self.done_prompts = self.ended_sequences = 0
        self.turn_taken_s = 0.0

    def _follow_rates(self, before: WorkerState | None) -> None:
        """Update the rates. A worker reports changes, so until now it was as in the report `before`."""
        now = self.clock()
        took_s = REPORT_S if self.reported_s is None else max(0.0, now - self.reported_s)
        self.reported_s = now
        self.followed_s += took_s
        token_s = self._piece_token_s() if self.rows else self.token_s
        computed = 0.0
        if token_s and before is not None and before.computing_tokens:
            computed = min(took_s / token_s, before.computing_tokens + before.waiting_tokens)
        half = math.exp(-took_s / RATE_S / 2)  # work in between happened in the middle, on average
        self.computed_tokens = half * (half * self.computed_tokens + computed)
        self.came_tokens = half * (half * self.came_tokens + self.sent_prompts)
        used_blocks = 0 if before is None else max(0, self.hello.blocks_total - before.blocks_free)
        self.usual_used_blocks += (1.0 - half * half) * (used_blocks - self.usual_used_blocks)
        self.lately_tokens = math.exp(-took_s / LOAD_S) * self.lately_tokens + max(computed, self.sent_prompts)

    def turn_in_s(self, workers: int) -> float | None:
        """Seconds until it is this gateway's turn to send held prompts to one of `workers`, by this worker's report
        (`RoundPosition.wait_s`)."""
        if self.state is None or self.state.turn is None or self.reported_s is None:
            return 0.0
        turn = self.state.turn
        since_s = max(0.0, self.clock() - self.reported_s)
        return RoundPosition(turn.place, turn.of).wait_s(since_s, self.turn_taken_s, workers)

    def record_sent(self, tokens: int, sequences: int = 1, *, is_computed: bool = True) -> None:
        """Count a message sent to it. `is_computed`: it computes these tokens; else it receives their KV."""
        self._view = None
        self.sent_sequences += sequences
        self.sent_tokens += tokens
        self.sent_prompts += tokens if is_computed else 0

    def record_computed(self, tokens: int) -> None:
        """Count a prompt sent from here whose first token came. Its view shows it soon, as it does the clock."""
        self.done_prompts += tokens

    def record_ended(self, sequences: int) -> None:
        """Count sequences sent from here that ended. Its view shows it soon."""
        self.ended_sequences += sequences

    @property
    def token_s(self) -> float | None:
        """Seconds per prompt token; None: no prompt step was seen."""
        return self.prefill_s / self.prefill_tokens if self.prefill_tokens else None

    @property
    def more_token_s(self) -> float | None:
        """Seconds that one more token adds to a step, by least squares: less than `token_s`, which includes the fixed
        part of a step. Prompts that wait together are computed together. None: no prompt step was seen.
        """
        mean_s, count = self.token_s, self.prefill_steps
        if mean_s is None:
            return None
        spread = count * self.prefill_squares - self.prefill_tokens**2
        if spread <= SPREAD * self.prefill_tokens**2:  # all steps were alike
            return mean_s
        slope = (count * self.prefill_products - self.prefill_tokens * self.prefill_s) / spread
        return min(mean_s, max(LEAST_SHARE * mean_s, slope))

    @property
    def coming_tokens_s(self) -> float:
        """Prompt tokens a second that arrive at it: those that it computed recently, from all gateways, or those that
        were sent from here, if more: a worker that cannot keep up computes fewer than arrive.
        """
        if self.reported_s is None:
            return 0.0
        silent_s = max(0.0, self.clock() - self.reported_s)
        weight_s = RATE_S * (1.0 - math.exp(-(self.followed_s + silent_s) / RATE_S))
        return math.exp(-silent_s / RATE_S) * max(self.computed_tokens, self.came_tokens) / weight_s

    def _piece_token_s(self) -> float | None:
        """Seconds per prompt token of steps that also decode; None: none was seen."""
        return self.piece_s / self.piece_tokens if self.piece_tokens else None

    def _left(self, state: WorkerState) -> int:
        """Prompt tokens of the last report that are still to be computed, given the time since then.

        Of the waiting tokens, only as many count as computed as fit into a step that cannot have been reported yet.
        """
        token_s = self.token_s
        if self.rows or (state.running and self.role is Role.DECODE):
            token_s = self._piece_token_s()
        if not token_s or not state.computing_tokens:
            return state.waiting_tokens + state.computing_tokens
        left_s = state.computing_tokens * token_s - (self.clock() - self.computing_since_s)
        if left_s >= 0:
            return state.waiting_tokens + int(left_s / token_s)
        return max(0, state.waiting_tokens - int(min(-left_s, REPORT_S) / token_s))

    def _prompts_left(self, left: int, reported: int) -> int:
        """Prompt tokens that are still to be computed: those sent since the last report, and those of the `reported`
        ones of which `left` should be left by the clock. Results that came since are sure."""
        return self.sent_prompts + max(-self.sent_prompts, min(left, reported - self.done_prompts))

    def _is_stuck(self, state: WorkerState) -> bool:
        """Return whether its step has taken far longer than it should; False while that is unknown."""
        token_s = self.token_s
        if not state.computing_tokens or token_s is None:
            return False
        return self.clock() - self.computing_since_s > STUCK_S + STUCK_TIMES * token_s * state.computing_tokens

    def _waiting(self, state: WorkerState) -> int:
        """Requests that wait by the last report, and those sent since that find no slot. Sequences that ended since
        made room for as many."""
        more = self.sent_sequences - self.ended_sequences
        if state.waiting:
            return max(0, state.waiting + more)
        return max(0, state.running + more - self.hello.max_sequences)

    def view(self) -> WorkerView:
        """The worker as routing sees it: as of a few milliseconds ago, if nothing was reported or sent since."""
        now, view = self.clock(), self._view
        if view is None or now - self._viewed_s >= VIEW_S or view.is_suspect is not self.is_suspect:
            view, self._viewed_s = self._make_view(), now
            self._view = view
        return view

    def forget_view(self) -> None:
        """Let the next view show all that is known."""
        self._view = None

    def _make_view(self) -> WorkerView:
        hello, state = self.hello, self.state
        prompt_cost = self.prompt_costs.cost
        forgets = self.role is Role.DECODE or prompt_cost is not None
        left, sent_blocks = 0 if state is None else self._left(state), self.sent_tokens // hello.block_tokens
        prompts_left = self._prompts_left(left, 0 if state is None else state.waiting_tokens + state.computing_tokens)
        sent = self.sent_sequences + (0 if state is None else state.running + state.waiting)
        pair = None if hello.pair_port is None else Address(self.address.host, hello.pair_port)
        return WorkerView(
            epoch=hello.epoch,
            role=self.role,
            served_name=hello.served_name,
            fingerprint=self.fingerprint or hello.fingerprint,
            pair_address=pair,
            max_context_tokens=hello.max_context_tokens,
            max_choices=hello.max_choices,
            block_tokens=hello.block_tokens,
            blocks_total=hello.blocks_total,
            blocks_free=None if state is None else max(0, state.blocks_free - sent_blocks),
            blocks_empty=None if state is None else max(0, state.blocks_free - state.blocks_cached - sent_blocks),
            load_sequences=max(0, sent - self.ended_sequences),
            load_tokens=self.sent_tokens - self.sent_prompts + prompts_left,
            prompt_tokens=prompts_left,
            token_s=self.token_s,
            more_token_s=self.more_token_s,
            running=0 if state is None else state.running,
            waiting=0 if state is None else self._waiting(state),
            max_sequences=hello.max_sequences,
            step_s=0.0 if state is None else state.step_s,
            rows_s=self.piece_costs.size.base_s,
            least_rows_s=self.piece_costs.size.least_s,
            recent_step_s=self.piece_costs.recent_step_s(self.clock()),
            kv_token_s=self.kv_reads.kv_token_s,
            fixed_s=self.kv_reads.fixed_s,
            prompt_cost=prompt_cost,
            usual_held_tokens=int(self.usual_used_blocks * hello.block_tokens),
            coming_tokens_s=self.coming_tokens_s,
            piece_token_s=self.piece_costs.token_s(self.clock(), forgets=forgets),
            piece_fixed_s=self.piece_costs.fixed_s,
            rows=self.rows,
            keeps_answers=hello.keeps_answers,
            encoding=hello.encoding,
            gateways=1 if state is None else state.gateways,
            seed=self.seed,
            lately_tokens_s=self.lately_tokens / LOAD_S,
            is_stuck=state is not None and self._is_stuck(state),
            is_draining=state is not None and state.draining,
            is_suspect=self.is_suspect,
        )


@dataclass(slots=True)
class WorkerTable:
    """All linked workers by epoch."""

    _workers: dict[bytes, LinkedWorker] = field(default_factory=dict)
    settled_s: float = 0.0
    """Until then an empty table proves nothing: a gateway that has just started has not tried all its workers yet."""
    cached: CachedPlacesBook = field(default_factory=CachedPlacesBook)
    """The places that workers announced of their prefix caches."""
    has_served: bool = False
    """True once there were workers that can answer requests together, or one that encodes."""
    wanted: int | None = None
    """The number of workers that the pools are to have together, as announced; None: not known."""
    body_limits: BodyLimits = field(default_factory=lambda: body_limits(None, None))
    """The limits of a request's body, by the most that any linked worker takes."""

    def add(self, worker: LinkedWorker) -> bool:
        """False when this process is linked already (the same worker under two addresses)."""
        if worker.hello.epoch in self._workers:
            return False
        self._workers[worker.hello.epoch] = worker
        self.cached.begin(worker.hello.epoch)
        fingerprint = worker.hello.fingerprint
        worker.fingerprint = next((other.fingerprint for other in self._of(fingerprint)), None) or fingerprint
        worker.seed = int.from_bytes(worker.hello.epoch[:8], "little")
        self.has_served |= worker.hello.encoding is not None or len({own.role for own in self._of(fingerprint)}) > 1
        self._limit_bodies()
        return True

    def remove(self, epoch: bytes) -> None:
        self._workers.pop(epoch, None)
        self.cached.end(epoch)
        self._limit_bodies()

    def _limit_bodies(self) -> None:
        contexts = [worker.hello.max_context_tokens for worker in self._workers.values()]
        prompts = [_longest_prompt_bytes(worker) for worker in self._workers.values()]
        known = [size for size in prompts if size is not None]
        longest_prompt = max(known) if known and len(known) == len(prompts) else None
        self.body_limits = body_limits(max(contexts, default=None), longest_prompt)

    def get(self, epoch: bytes) -> LinkedWorker | None:
        return self._workers.get(epoch)

    def all(self) -> Iterable[LinkedWorker]:
        return self._workers.values()

    def live_prefill(self, fingerprint: PairFingerprint) -> list[LinkedWorker]:
        """The revision's prefill workers that prompts can go to."""
        workers = self._of(fingerprint)
        live = (worker for worker in workers if worker.condition is WorkerCondition.LIVE)
        return [worker for worker in live if worker.role is Role.PREFILL]

    def refresh(self) -> None:
        """Let the next views show all that is known."""
        for worker in self._workers.values():
            worker.forget_view()

    def num_usable(self) -> int:
        """The number of workers that new runs may go to."""
        return sum(worker.condition is WorkerCondition.LIVE for worker in self._workers.values())

    def views(self) -> list[WorkerView]:
        return [worker.view() for worker in self._workers.values()]

    def block_sizes(self, fingerprint: PairFingerprint) -> list[int]:
        """The sizes of blocks, in tokens, that the revision's workers have."""
        return sorted({worker.hello.block_tokens for worker in self._of(fingerprint)})

    def served_names(self) -> list[str]:
        return sorted({worker.hello.served_name for worker in self._workers.values()})

    def max_context_tokens(self, name: str) -> int | None:
        """The longest context that any revision of this model can take; None: no worker serves it."""
        hellos = (worker.hello for worker in self._workers.values())
        fingerprints = {hello.fingerprint for hello in hellos if hello.served_name == name}
        limits = (self.limits(fingerprint) for fingerprint in fingerprints)
        return max((limit.max_context_tokens for limit in limits if limit is not None), default=None)

    def text_of(self, name: str) -> tuple[TextModel, ModelLimits] | None:
        """Text and limits of some revision of this model; None: no worker serves it."""
        worker = next((worker for worker in self._workers.values() if worker.hello.served_name == name), None)
        if worker is None or (limits := self.limits(worker.hello.fingerprint)) is None:
            return None
        return worker.text, limits

    def text(self, fingerprint: PairFingerprint) -> TextModel | None:
        """The text side of a revision that some linked worker has."""
        return next((worker.text for worker in self._of(fingerprint)), None)

    def limits(self, fingerprint: PairFingerprint) -> ModelLimits | None:
        """The limits of a pair of the largest workers of each role; None: no worker is linked."""
        largest: dict[Role, int] = {}
        vocabularies = []
        for worker in self._of(fingerprint):
            hello = worker.hello
            largest[worker.role] = max(largest.get(worker.role, 0), hello.max_context_tokens)
            vocabularies.append(hello.vocab_size)
        if not largest:
            return None
        return ModelLimits(min(largest.values()), min(vocabularies))

    def encoding(self, fingerprint: PairFingerprint) -> EncodingLimits | None:
        """The results that the revision's workers compute of prompts besides answers; None: nothing."""
        return next((worker.hello.encoding for worker in self._of(fingerprint) if worker.hello.encoding), None)

    def _of(self, fingerprint: PairFingerprint) -> list[LinkedWorker]:
        return [worker for worker in self._workers.values() if worker.hello.fingerprint == fingerprint]


def _longest_prompt_bytes(worker: LinkedWorker) -> int | None:
    longest_token = worker.text.longest_token_bytes
    return None if longest_token is None else longest_token * worker.hello.max_context_tokens
