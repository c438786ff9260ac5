"""The linked workers: what each said of itself, what was sent to it since, and the snapshot that routing looks at.

Plain bookkeeping; sockets are `links`' business.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baton_gateway.text.revision_text import TextModel
from baton_gateway.workers.request_limits import BodyLimits, ModelLimits, body_limits
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.liveness import REPORT_S
from baton_wire.messages.gateway_link import Cancel, Flip, Hello, Holding, Prefill, Reserve, Retarget, WorkerState
from baton_wire.messages.measures import MAX_TIMINGS, StepTiming, WorkerCondition
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.gateway_rounds import RoundPosition
from baton_wire.rules.piece_size import PieceSize
from baton_wire.rules.prompt_placement import MOST_TOKENS

SPREAD = 0.01
"""Variance of the steps' tokens, by their squared mean, from which on a slope can be told."""
LEAST_SHARE = 0.1
"""Of the mean, a slope that is believed: smaller ones are noise."""
FADING = 0.9
"""What an older prompt step counts against the next one."""
RATE_S = 2.0
"""What came or was computed so long ago counts a third of what does now, in rates."""


@dataclass(slots=True, eq=False)
class LinkedWorker:
    """One worker process behind a live link."""

    hello: Hello
    address: Address
    """Where the gateway dialled it."""
    text: TextModel
    send: Callable[[Prefill | Reserve | Retarget | Cancel | Flip | Holding], bool]
    """Queue a message; False when the link is gone."""
    clock: Callable[[], float] = time.monotonic
    state: WorkerState | None = None
    doubted: bool = False
    """What its last state says of its load can't be so."""
    told_role: Role | None = None
    flip_told: int = 0
    """By the state with the highest number of a flip: an older one says nothing of its role."""
    computing_since_s: float = 0.0
    """When the oldest step that it told of and that is not over was first told of."""
    is_suspect: bool = False
    sent_sequences: int = 0
    """Since the last report."""
    sent_tokens: int = 0
    sent_prompts: int = 0
    """Of these tokens, what it is to compute itself."""
    turn_taken_s: float = 0.0
    """Work that was sent in this gateway's turn, if this worker gives turns."""
    timings: deque[StepTiming] = field(default_factory=lambda: deque(maxlen=MAX_TIMINGS))
    """Steps that it told of since somebody took them."""

    prefill_s: float = 0.0
    """Seconds and tokens of its pure prompt steps, older ones fading."""
    prefill_tokens: float = 0.0
    prefill_steps: float = 0.0
    prefill_squares: float = 0.0
    prefill_products: float = 0.0
    """The same of steps, tokens × tokens and tokens × seconds."""
    pieces: PieceSize = field(default_factory=lambda: PieceSize(MOST_TOKENS))
    """What its steps with decode rows cost."""
    piece_s: float = 0.0
    piece_tokens: float = 0.0
    """Seconds and prompt tokens of such steps with prompts in them, older ones fading."""
    rows: int = 0
    """Sequences that decoded in the last step that it told of; none once nothing runs."""
    followed_s: float = 0.0
    """For how long its rates have been followed, until the latest report."""
    reported_s: float | None = None
    computed_tokens: float = 0.0
    """Prompt tokens that it computed until the latest report, by its reports; older ones fading."""
    came_tokens: float = 0.0
    """The same of those that were sent to it to be computed."""

    @property
    def role(self) -> Role:
        """What it does now: as it told with its last flip."""
        return self.hello.role if self.told_role is None else self.told_role

    @property
    def condition(self) -> WorkerCondition:
        if self.state is not None and self.state.draining:
            return WorkerCondition.DRAINING
        return WorkerCondition.SUSPECT if self.is_suspect else WorkerCondition.LIVE

    def flip(self, number: int, role: Role) -> bool:
        """Tell it to be a worker of this role, unless it said that it was told as much or more. False: it has one role
        only. Whether it comes too late is for the worker to say.
        """
        if self.hello.flips and self.flip_told < number:
            self.send(Flip(number, role))
        return self.hello.flips

    def taken_timings(self) -> tuple[StepTiming, ...]:
        taken = tuple(self.timings)
        self.timings.clear()
        return taken

    def reported(self, state: WorkerState) -> None:
        before, self.state = self.state, state
        if state.flip >= self.flip_told:
            self.told_role, self.flip_told = state.role, state.flip
        if before is None or state.steps != before.steps or not before.computing_tokens:
            self.computing_since_s = self.clock()
        self.timings.extend(state.timings)
        if state.timings:
            self.rows = state.timings[-1].decode_rows
        if not state.running:
            self.rows = 0
        for timing in state.timings:
            self.pieces.observe(timing.decode_rows, timing.prefill_tokens, timing.seconds)
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
        self._follow_rates(before)
        self.sent_sequences = self.sent_tokens = self.sent_prompts = 0
        self.turn_taken_s = 0.0

    def _follow_rates(self, before: WorkerState | None) -> None:
        """A worker reports when something changed: until now it was as it said in the report `before`."""
        now = self.clock()
        took_s = REPORT_S if self.reported_s is None else max(0.0, now - self.reported_s)
        self.reported_s = now
        self.followed_s += took_s
        token_s = self._beside_rows_s() if self.rows else self.token_s
        computed = 0.0
        if token_s and before is not None and before.computing_tokens:
            computed = min(took_s / token_s, before.computing_tokens + before.waiting_tokens)
        half = math.exp(-took_s / RATE_S / 2)  # what was in between was so in the middle of it, on average
        self.computed_tokens = half * (half * self.computed_tokens + computed)
        self.came_tokens = half * (half * self.came_tokens + self.sent_prompts)

    def turn_in_s(self, workers: int) -> float | None:
        """Until it is this gateway's turn to send what it holds to one of so many workers, as far as this one told
        (`RoundPosition.wait_s`)."""
        if self.state is None or self.state.turn is None or self.reported_s is None:
            return 0.0
        turn = self.state.turn
        since_s = max(0.0, self.clock() - self.reported_s)
        return RoundPosition(turn.place, turn.of).wait_s(since_s, self.turn_taken_s, workers)

    def sent(self, tokens: int, sequences: int = 1, *, is_computed: bool = True) -> None:
        """`is_computed`: by this worker; else it receives the KV."""
        self.sent_sequences += sequences
        self.sent_tokens += tokens
        self.sent_prompts += tokens if is_computed else 0

    @property
    def token_s(self) -> float | None:
        """Seconds per prompt token; None: no prompt step was seen."""
        return self.prefill_s / self.prefill_tokens if self.prefill_tokens else None

    @property
    def more_token_s(self) -> float | None:
        """Seconds that one more token adds to a step, by least squares: less than `token_s`, which has the fixed part
        of a step in it. What waits together is computed together. None: no prompt step was seen.
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
        """Prompt tokens a second that come to it: as many as it computed of late, whoever sent them, or as were sent
        from here. A worker that cannot keep up computes less than comes.
        """
        if self.reported_s is None:
            return 0.0
        silent_s = max(0.0, self.clock() - self.reported_s)
        weight_s = RATE_S * (1.0 - math.exp(-(self.followed_s + silent_s) / RATE_S))
        return math.exp(-silent_s / RATE_S) * max(self.computed_tokens, self.came_tokens) / weight_s

    def _beside_rows_s(self) -> float | None:
        """Seconds per prompt token of steps that also decode; None: none was seen."""
        return self.piece_s / self.piece_tokens if self.piece_tokens else None

    def _left(self, state: WorkerState) -> int:
        """Prompt tokens of the last report that are still to be computed, as time has passed since.

        Of those that waited, as many as go into a step that nobody can have told of yet.
        """
        token_s = self.token_s
        if self.rows or (state.running and self.role is Role.DECODE):
            token_s = self._beside_rows_s()
        if not token_s or not state.computing_tokens:
            return state.waiting_tokens + state.computing_tokens
        left_s = state.computing_tokens * token_s - (self.clock() - self.computing_since_s)
        if left_s >= 0:
            return state.waiting_tokens + int(left_s / token_s)
        return max(0, state.waiting_tokens - int(min(-left_s, REPORT_S) / token_s))

    def _waiting(self, state: WorkerState) -> int:
        """Those of the last report, and of those sent since what finds no slot."""
        if state.waiting:
            return state.waiting + self.sent_sequences
        return max(0, state.running + self.sent_sequences - self.hello.max_sequences)

    def view(self) -> WorkerView:
        hello, state = self.hello, self.state
        left = 0 if state is None else self._left(state)
        pair = None if hello.pair_port is None else Address(self.address.host, hello.pair_port)
        return WorkerView(
            epoch=hello.epoch,
            role=self.role,
            served_name=hello.served_name,
            fingerprint=hello.fingerprint,
            pair_address=pair,
            max_context_tokens=hello.max_context_tokens,
            max_choices=hello.max_choices,
            block_tokens=hello.block_tokens,
            blocks_total=hello.blocks_total,
            blocks_free=None if state is None else max(0, state.blocks_free - self.sent_tokens // hello.block_tokens),
            load_sequences=self.sent_sequences + (0 if state is None else state.running + state.waiting),
            load_tokens=self.sent_tokens + left,
            prompt_tokens=self.sent_prompts + left,
            token_s=self.token_s,
            more_token_s=self.more_token_s,
            running=0 if state is None else state.running,
            waiting=0 if state is None else self._waiting(state),
            max_sequences=hello.max_sequences,
            step_s=0.0 if state is None else state.step_s,
            rows_s=self.pieces.base_s,
            least_rows_s=self.pieces.least_s,
            coming_tokens_s=self.coming_tokens_s,
            piece_token_s=self.pieces.token_s,
            rows=self.rows,
            keeps_answers=hello.keeps_answers,
            gateways=1 if state is None else state.gateways,
            is_draining=state is not None and state.draining,
            is_suspect=self.is_suspect,
        )


@dataclass(slots=True)
class WorkerTable:
    """All linked workers by epoch."""

    _workers: dict[bytes, LinkedWorker] = field(default_factory=dict)
    settled_s: float = 0.0
    """Until when an empty table says nothing: a gateway that has just started has not tried all its workers yet."""
    body_limits: BodyLimits = field(default_factory=lambda: body_limits(None, None))
    """What a request may bring, by the most that any linked worker takes."""

    def add(self, worker: LinkedWorker) -> bool:
        """False when this process is linked already (the same worker under two addresses)."""
        if worker.hello.epoch in self._workers:
            return False
        self._workers[worker.hello.epoch] = worker
        self._limit_bodies()
        return True

    def remove(self, epoch: bytes) -> None:
        self._workers.pop(epoch, None)
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
        prefill = (each for each in self._of(fingerprint) if each.role is Role.PREFILL)
        return [worker for worker in prefill if worker.condition is WorkerCondition.LIVE]

    def views(self) -> list[WorkerView]:
        return [worker.view() for worker in self._workers.values()]

    def served_names(self) -> list[str]:
        return sorted({worker.hello.served_name for worker in self._workers.values()})

    def max_context_tokens(self, name: str) -> int | None:
        """The longest context that any revision of this model can take; None: nobody serves it."""
        fingerprints = {each.hello.fingerprint for each in self._workers.values() if each.hello.served_name == name}
        found = [limits.max_context_tokens for each in fingerprints if (limits := self.limits(each)) is not None]
        return max(found, default=None)

    def text_of(self, name: str) -> tuple[TextModel, ModelLimits] | None:
        """Text and limits of some revision of this model; None: nobody serves it."""
        worker = next((each for each in self._workers.values() if each.hello.served_name == name), None)
        if worker is None or (limits := self.limits(worker.hello.fingerprint)) is None:
            return None
        return worker.text, limits

    def text(self, fingerprint: PairFingerprint) -> TextModel | None:
        """The text side of a revision that some linked worker has."""
        return next((worker.text for worker in self._of(fingerprint)), None)

    def limits(self, fingerprint: PairFingerprint) -> ModelLimits | None:
        """What the largest worker of each role can take, as a pair."""
        largest: dict[Role, int] = {}
        vocabularies = []
        for worker in self._of(fingerprint):
            hello = worker.hello
            largest[worker.role] = max(largest.get(worker.role, 0), hello.max_context_tokens)
            vocabularies.append(hello.vocab_size)
        if not largest:
            return None
        return ModelLimits(min(largest.values()), min(vocabularies))

    def _of(self, fingerprint: PairFingerprint) -> list[LinkedWorker]:
        return [worker for worker in self._workers.values() if worker.hello.fingerprint == fingerprint]


def _longest_prompt_bytes(worker: LinkedWorker) -> int | None:
    longest_token = worker.text.longest_token_bytes
    return None if longest_token is None else longest_token * worker.hello.max_context_tokens
