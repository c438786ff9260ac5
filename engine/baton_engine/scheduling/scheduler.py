"""The engine's scheduler: requests in, step plans out, results in, events out. Pure: no clock, no device, no threads.

Prefill workers submit prompts with `hold` and release them after the hand-over. Decode workers reserve blocks, learn
that the KV has landed, and decode; or they submit prompts and prefill them here. The rules are in the parts: which
prompts start (`admission`), which reservations are granted (`reservations`), how choices fork (`branching`), which row
gets the next block (`growth`, `preemption`), and what a result changes (`results`). docs/engine.md describes the whole.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from baton_engine.memory.blocks import BlockPool, BlockState
from baton_engine.memory.place_journal import PlaceChanges
from baton_engine.scheduling.admission import fill_step
from baton_engine.scheduling.branching import branch_prefixes
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.engine_state import (
    EngineState,
    drop_request,
    end_sequence,
    enqueue,
    publish,
    stop_request,
    uncount_held,
)
from baton_engine.scheduling.events import Drawn, Failed, SchedulerEvent, SequenceSpec
from baton_engine.scheduling.growth import advance_rows
from baton_engine.scheduling.promised_places import PromisedPlaces
from baton_engine.scheduling.request_validation import refusal
from baton_engine.scheduling.reservations import grant_reservations, report_positions
from baton_engine.scheduling.results import read_result
from baton_engine.scheduling.sequence import (
    Request,
    SequenceStage,
    SharedPrefix,
    SharedPrefixStage,
    open_request,
    work_tokens,
)
from baton_engine.scheduling.slots import SlotTable
from baton_engine.scheduling.step_draft import StepDraft
from baton_engine.scheduling.step_plan import StepPlan, StepResult
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, Reason, RequestKey, SamplingParams
from baton_wire.rules.piece_size import PieceSize


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Load and counters at one moment. Every block is counted once; the last three are counters and only grow."""

    running: int
    """Sequences that hold a slot."""
    waiting: int
    """Accepted requests without a slot, reservations and landed ones included, and preempted sequences.

    Requests that wait only for other runs of their own flow are left out: they keep no other client waiting.
    """
    waiting_tokens: int
    """Tokens of prompts and preempted sequences that are in no step yet. Those of a waiting prompt that are probably
    cached are left out."""
    blocks_free: int
    blocks_cached: int
    """Without an owner, given out when needed: free as well, but their KV may be hit."""
    blocks_reserved: int
    """Held for KV that has not landed."""
    blocks_in_use: int
    """Held, or waiting for a launched step to end."""
    is_draining: bool
    preemptions: int
    prompt_tokens: int
    """Tokens of all started prompts and granted reservations."""
    cached_prompt_tokens: int
    """The part of `prompt_tokens` that the prefix cache had."""


class Scheduler:
    """Decides what each step computes: `plan` a step, run it, `apply` its result, and collect the `events`.

    All verbs take `now` on one monotonic clock.

    >>> from baton_engine.scheduling.events import SequenceSpec
    >>> from baton_engine.scheduling.step_plan import SlotTokens, StepResult
    >>> from baton_wire.messages.values import RequestKey, SamplingParams
    >>> config = EngineConfig(num_blocks=8, block_tokens=4, max_slots=2, max_context_tokens=16)
    >>> scheduler = Scheduler(config)
    >>> key = RequestKey(b"request-0000001.", 1)
    >>> sampling = SamplingParams(max_tokens=2, temperature=0)
    >>> spec = SequenceSpec(key, (5, 6, 7), 3, (0,), sampling, salt="", deadline_s=60.0)
    >>> scheduler.submit(spec, now=0.0)
    >>> plan = scheduler.plan(now=0.0)  # the prompt, and slot 0 draws from its last position
    >>> [(chunk.slot, chunk.start, chunk.tokens, chunk.sample) for chunk in plan.prefill]
    [(0, 0, (5, 6, 7), (0,))]
    >>> scheduler.apply(StepResult(plan.step, (SlotTokens(0, (8,)),), duration_s=0.01), now=0.01)
    >>> plan = scheduler.plan(now=0.01)  # slot 0 decodes token 8
    >>> plan.decode
    (0,)
    >>> scheduler.apply(StepResult(plan.step, (SlotTokens(0, (9,)),), duration_s=0.01), now=0.02)
    >>> drawn = [event for event in scheduler.events() if isinstance(event, Drawn)]
    >>> [(event.ids, event.finish and event.finish.value) for event in drawn]
    [((8,), None), ((9,), 'length')]
    """

    def __init__(
        self, config: EngineConfig, is_ready: Callable[[SamplingParams], bool] = lambda sampling: True
    ) -> None:
        """`is_ready` is true when all that such options need before a draw is ready, such as a compiled grammar. Asked
        in every plan; must not wait."""
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.reaches)
        pieces = PieceSize(config.max_step_tokens)
        self._state = EngineState(config, self.pool, SlotTable(config.max_slots), pieces, is_ready)
        self._arrivals = 0
        self._deadlines: list[tuple[float, int, RequestKey]] = []
        self._promised = PromisedPlaces()

    # Verbs ------------------------------------------------------------------------------------------------------------

    def submit(self, spec: SequenceSpec, now: float) -> None:
        """Compute the prompt here. Ends in Drawn with a finish per choice, in Prefilled (`spec.hold`), or in Failed."""
        if not self._refuse(spec, now, len(self._state.waiting)):
            request = self._open(spec, SharedPrefixStage.WAITING)
            prefix = _prefix_of(request)
            enqueue(self._state.waiting, prefix)
            self._state.waiting_tokens += prefix.missing_tokens

    def reserve(self, spec: SequenceSpec, now: float) -> None:
        """Hold room for the KV of all of the spec's tokens. Reserved follows, at once or after Queued; or Failed."""
        state = self._state
        if not self._refuse(spec, now, len(state.queued)):
            request = self._open(spec, SharedPrefixStage.QUEUED)
            enqueue(state.queued, _prefix_of(request))
            if next(iter(state.queued)) == spec.key:
                grant_reservations(state)
            if request.key in state.queued:
                report_positions(state)

    def granted(self, key: RequestKey, now: float) -> None:
        """A decode worker has granted room for this held prompt: it no longer counts against `max_held_share`."""
        request = self._state.requests.get(key)
        if request is not None:
            request.is_granted = True
            uncount_held(self._state, request)

    def landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...], now: float) -> None:
        """The KV of a granted reservation has arrived and is verified: decode the choices that have not ended.

        Every first token is reported again as Drawn. No effect on a key without a granted reservation.
        """
        state = self._state
        request = state.requests.get(key)
        if request is None or _prefix_of(request).stage is not SharedPrefixStage.RESERVED:
            return
        if request.is_stopped:  # cancelled meanwhile: with the landing the transfer is over
            drop_request(state, request)
            return
        by_choice = {first.choice: first for first in first_tokens}
        missing = [sequence.choice for sequence in request.live if sequence.choice not in by_choice]
        if missing:
            self._fail(request, Reason.BAD_REQUEST, f"first_tokens: none for choices {missing}")
            return
        prefix = _prefix_of(request)
        prefix.stage = SharedPrefixStage.LANDED
        insort(state.landed, prefix, key=lambda prefix: prefix.order)
        request.is_announced = False
        state.pool.activate(prefix.owner)
        self._publish_landed(request, prefix)
        for sequence in request.live:
            self._take_first(request, sequence.choice, by_choice[sequence.choice])

    def release(self, key: RequestKey, now: float) -> None:
        """Give back whatever the key holds, in any state. Call it when no transfer uses its blocks any more."""
        request = self._state.requests.get(key)
        if request is not None:
            drop_request(self._state, request)

    def cancel(self, key: RequestKey, choice: int | None, now: float) -> None:
        """End the request, or one choice of it, without further events.

        Everything is given back, except blocks that a transfer may be using: those announced by Computed (until
        `release`) or Reserved (until `release` or `landed`).
        """
        request = self._state.requests.get(key)
        if request is None:
            return
        sequence = None if choice is None else request.sequences.get(choice)
        if choice is None or request.live == [sequence]:
            stop_request(self._state, request)
        elif sequence is not None:
            end_sequence(self._state, sequence)

    def drain(self) -> None:
        """Refuse new requests; accepted ones go on."""
        self._state.is_draining = True

    # The step ---------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can be computed now. The caller launches it before planning again."""
        state = self._state
        self._expire(now)
        draft = StepDraft(state.launched_step + 1)
        branch_prefixes(state, draft)
        advance_rows(state, draft)
        grant_reservations(state)
        fill_step(state, draft)
        if state.queued:
            grant_reservations(state)
        sealed = draft.seal(state.batch, state.slots, is_ahead=bool(state.in_flight))
        if sealed is None:
            return None
        plan, launched = sealed
        state.launched_step = plan.step
        state.in_flight.append(launched)
        return plan

    def apply(self, result: StepResult, now: float) -> None:
        """Take the result of the oldest launched step. Raises RuntimeError when it is another step's."""
        read_result(self._state, result, now)

    def events(self) -> list[SchedulerEvent]:
        """Take the events since the last call, in order."""
        events, self._state.events = self._state.events, []
        return events

    def take_places(self) -> PlaceChanges:
        """Take what changed since the last call in the announced places of the prefix cache: those that are cached, and
        those that accepted prompts will bring."""
        self._promised.update(self._state, self.pool.places)
        return self.pool.places.take(self.config.block_tokens)

    # Questions --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True when a plan may have work. Held prompts and granted reservations have none: they wait for a transfer."""
        state = self._state
        moving = state.is_running or state.in_flight or state.waiting or state.preempted or state.landed
        return bool(moving or state.queued or state.slots.has_closing)

    def expected_s(self, decode_rows: int, prompt_tokens: int) -> float | None:
        """Estimate how long a step with this load takes, as learned from earlier steps; None: not known."""
        return self._state.pieces.expected_s(decode_rows, prompt_tokens)

    def knows(self, key: RequestKey) -> bool:
        return key in self._state.requests

    def stats(self) -> SchedulerStats:
        """Cheap enough for every turn."""
        state, count = self._state, self.pool.count
        waiting = len(state.waiting) + len(state.preempted) + len(state.queued) + len(state.landed)
        return SchedulerStats(
            running=state.slots.taken,
            waiting=max(0, waiting - state.over_share),
            waiting_tokens=state.waiting_tokens
            + sum(len(prefix.tokens) - prefix.planned_tokens for prefix in state.prefilling),
            blocks_free=count(BlockState.FREE),
            blocks_cached=count(BlockState.CACHED),
            blocks_reserved=count(BlockState.RESERVED),
            blocks_in_use=count(BlockState.IN_USE) + count(BlockState.FENCED),
            is_draining=state.is_draining,
            preemptions=state.preemptions,
            prompt_tokens=state.prompt_tokens,
            cached_prompt_tokens=state.cached_prompt_tokens,
        )

    def check(self) -> None:
        """Raise AssertionError if the books do not agree: for tests and simulation."""
        self.pool.check()
        requests = self._state.requests
        for owner in self.pool.owners():
            assert owner.key in requests, f"{owner} holds blocks, but its request is over"
        if not requests and not self._state.in_flight and not self._state.slots.has_closing:
            assert self.pool.available == self.pool.num_blocks
            assert self._state.slots.taken == 0
        assert self._state.ungranted_blocks == sum(request.held_blocks for request in requests.values())
        for request in requests.values():
            held = sum(
                sequence.slot is not None
                for other in requests.values()
                if other.flow == request.flow
                for sequence in other.sequences.values()
            )
            assert self._state.slots.held_by(request.flow) == held
        assert len(self._state.turns) == len({request.flow for request in requests.values()})
        waiting_tokens = sum(prefix.missing_tokens for prefix in self._state.waiting.values())
        waiting_tokens += sum(prefix.num_tokens for prefix in self._state.preempted)
        assert self._state.waiting_tokens == waiting_tokens

    # Inside -----------------------------------------------------------------------------------------------------------

    def _refuse(self, spec: SequenceSpec, now: float, waiting: int) -> bool:
        """Emit Failed when the request cannot be accepted; a known request with the same key is not affected."""
        problem: tuple[Reason, str] | None
        if spec.key in self._state.requests:
            problem = Reason.BAD_REQUEST, f"key: {spec.key} is already known"
        elif self._state.is_draining:
            problem = Reason.DRAINING, ""
        elif (problem := refusal(spec, self.config.max_context_tokens, self.config.max_slots)) is None:
            if spec.deadline_s <= now:
                problem = Reason.DEADLINE, ""
            elif waiting >= self.config.max_waiting:
                problem = Reason.NO_CAPACITY, f"{waiting} requests are waiting already"
        if problem is not None:
            self._state.events.append(Failed(spec.key, *problem))
        return problem is not None

    def _open(self, spec: SequenceSpec, stage: SharedPrefixStage) -> Request:
        self._arrivals += 1
        flow = spec.flow or spec.key.request
        tag = self._state.turns.opened(flow, work_tokens(spec))
        request = open_request(spec, self._arrivals, tag, self.config.max_context_tokens, stage)
        self._state.requests[spec.key] = request
        heappush(self._deadlines, (spec.deadline_s, request.arrival, spec.key))
        if spec.tpot_s is not None:
            self._state.pieces.target_s = spec.tpot_s
        return request

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, arrival, key = heappop(self._deadlines)
            request = self._state.requests.get(key)
            if request is None or request.arrival != arrival or request.is_stopped:
                continue
            if request.live:  # else complete and held: the hand-over has a deadline of its own
                self._state.events.append(Failed(key, Reason.DEADLINE))
                stop_request(self._state, request)

    def _fail(self, request: Request, reason: Reason, detail: str) -> None:
        self._state.events.append(Failed(request.key, reason, detail))
        drop_request(self._state, request)

    def _publish_landed(self, request: Request, prefix: SharedPrefix) -> None:
        block_tokens = self.config.block_tokens
        first, prefix.done_tokens = prefix.done_tokens // block_tokens, len(prefix.tokens)
        prefix.planned_tokens = len(prefix.tokens)
        if self.config.prefix_cache:
            publish(self._state, prefix.owner, prefix.digests, request.root, first, len(prefix.tokens) // block_tokens)

    def _take_first(self, request: Request, choice: int, first: FirstToken) -> None:
        """Report the token that the prefill worker drew, so that it reaches the client even if that worker dies."""
        sequence = request.sequences[choice]
        index = len(sequence.outputs)
        sequence.outputs.append(first.token)
        finish = first.finish or (Finish.LENGTH if index + 1 >= sequence.limit else None)
        logprobs = None if first.logprob is None else (first.logprob,)
        self._state.events.append(Drawn(request.key, choice, index, (first.token,), logprobs, finish))
        if finish is not None:
            end_sequence(self._state, sequence)
        else:
            assert sequence.stage is SequenceStage.PREFIX


def _prefix_of(request: Request) -> SharedPrefix:
    assert request.prefix is not None
    return request.prefix
