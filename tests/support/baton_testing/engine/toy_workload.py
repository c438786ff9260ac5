"""Any mix of requests on one toy engine, with what every one of them must produce.

Plays the parts outside of the scheduler: gateway (requests, cancels), transfer (landing KV, reading held KV until the
release) and clock. `Workload` asserts after every move; `finish` brings everything to its end and checks what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import (
    Computed,
    Computing,
    Drawn,
    Failed,
    Prefilled,
    Reserved,
    SchedulerEvent,
    SequenceSpec,
)
from baton_testing.engine.runners import context_kv, reference_tokens
from baton_testing.engine.toy_engine import Engine, engine, land
from baton_wire.messages.values import Reason, RequestKey


@dataclass(slots=True)
class Expectation:
    """One request as it is known from outside."""

    spec: SequenceSpec
    outputs: dict[int, list[int]]
    """By choice, what a run alone gives."""
    open_choices: set[int]
    """Not finished, failed or cancelled."""
    reserved: Reserved | None = None
    computed: Computed | None = None
    prefilled: Prefilled | None = None
    is_reservation: bool = False
    is_granted: bool = False
    has_landed: bool = False
    is_held: bool = False
    """Blocks were announced to the transfer and not released yet."""
    failure: Reason | None = None
    is_cancelled: bool = False


@dataclass(slots=True, eq=False)
class Workload:
    settings: EngineConfig
    is_ready: bool = True
    late_seeds: set[int] = field(default_factory=set)
    """Seeds of requests that cannot be drawn for yet, as if their grammars were being compiled."""
    engine: Engine = field(init=False)
    requests: dict[RequestKey, Expectation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = engine(
            self.settings, lambda: self.is_ready, lambda sampling: sampling.seed not in self.late_seeds
        )

    # Moves ------------------------------------------------------------------------------------------------------------

    def submit(self, spec: SequenceSpec) -> None:
        self._expect(spec)
        self.engine.scheduler.submit(spec, self.engine.now)
        self.look()

    def reserve(self, spec: SequenceSpec) -> None:
        self._expect(spec).is_reservation = True
        self.engine.scheduler.reserve(spec, self.engine.now)
        self.look()

    def land(self, request: Expectation) -> None:
        """The KV of a granted reservation arrives; the prefix that was cached is trusted to be there."""
        assert request.reserved is not None
        request.has_landed = True
        request.is_held = False
        firsts = land(self.engine.runner, request.spec, request.reserved)
        self.engine.scheduler.landed(request.spec.key, firsts, self.engine.now)
        self.look()

    def release(self, request: Expectation) -> None:
        """The transfer is done with the request's blocks: their content must still be what was announced."""
        if request.computed is not None:
            self._assert_kv(request.spec, request.computed)
        request.is_held = False
        request.is_cancelled = request.is_cancelled or request.prefilled is None
        request.open_choices.clear()
        self.engine.scheduler.release(request.spec.key, self.engine.now)
        self.look()

    def cancel(self, request: Expectation, choice: int | None) -> None:
        request.open_choices -= set(request.spec.choices) if choice is None else {choice}
        request.is_cancelled = request.is_cancelled or not request.open_choices
        self.engine.scheduler.cancel(request.spec.key, choice, self.engine.now)
        self.look()

    def turn(self) -> bool:
        moved = self.engine.stepper.turn(self.engine.now)
        self.look()
        return moved

    def pass_time(self, seconds: float) -> None:
        self.engine.now += seconds

    # Questions --------------------------------------------------------------------------------------------------------

    def awaiting_landing(self) -> list[Expectation]:
        return [request for request in self.requests.values() if request.reserved is not None and request.is_held]

    def held(self) -> list[Expectation]:
        return [request for request in self.requests.values() if request.spec.hold and request.is_held]

    def unfinished(self) -> list[Expectation]:
        return [request for request in self.requests.values() if request.open_choices]

    def finish(self) -> None:
        """Everything goes to its end: reservations land, held prompts are granted and released, the rest runs out."""
        for _ in range(10_000):
            moved = self.turn()
            self.is_ready = not self.is_ready
            for request in self.awaiting_landing():
                self.land(request)
                moved = True
            for request in self.held():
                if request.prefilled is not None or not request.open_choices:
                    self.release(request)
                    moved = True
            if not moved:
                moved = self._grant_next()
            if not moved:
                break
        assert self.engine.stepper.idle, "work is left, but nothing moves"
        for request in self.requests.values():
            assert not request.open_choices, f"{request.spec.key} never ended: {request}"
        stats = self.engine.scheduler.stats()
        assert stats.blocks_free + stats.blocks_cached == self.settings.num_blocks
        assert stats.running == stats.waiting == stats.waiting_tokens == 0

    def _grant_next(self) -> bool:
        """A decode worker has room for the next prompt that was not begun: in its order, which is not this engine's."""
        for request in reversed(self.requests.values()):
            if request.spec.hold and request.open_choices and request.computed is None and not request.is_granted:
                request.is_granted = True
                self.engine.scheduler.granted(request.spec.key, self.engine.now)
                return True
        return False

    # Watching ---------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take new events and compare them with what must come."""
        for event in self.engine.take_events():
            self._see(self.requests[event.key], event)

    def _see(self, request: Expectation, event: SchedulerEvent) -> None:
        assert request.failure is None, f"{event} after {request.failure}"
        match event:
            case Drawn(_, choice, first_index, ids, _, finish):
                expected = request.outputs[choice]
                assert list(ids) == expected[first_index : first_index + len(ids)], f"{request.spec} drew {event}"
                assert choice in request.open_choices, f"{event} of a choice that is over"
                is_end = first_index + len(ids) == len(expected)
                assert (finish is not None) == is_end, f"{event}: expected {len(expected)} outputs"
                if is_end or request.spec.hold:
                    request.open_choices.discard(choice)
            case Computing():
                assert request.spec.hold
                request.is_held = True
            case Computed():
                assert request.spec.hold
                assert request.computed is None or event.tokens > request.computed.tokens
                request.computed, request.is_held = event, True
            case Prefilled(_, firsts):
                assert request.computed is not None
                assert request.computed.tokens == len(request.spec.tokens)
                assert [first.choice for first in firsts]
                request.prefilled = event
            case Reserved(_, cached_tokens, blocks):
                assert cached_tokens % self.settings.block_tokens == 0
                assert len(blocks) == self.settings.blocks_for(len(request.spec.tokens)) * len(self.settings.windows)
                request.reserved, request.is_held = event, True
                self._assert_kv(request.spec, Computed(event.key, cached_tokens, blocks))
            case Failed(_, reason):
                self._assert_justified(request.spec, reason)
                request.failure = reason
                request.open_choices.clear()

    def _assert_justified(self, spec: SequenceSpec, reason: Reason) -> None:
        settings = self.settings
        full = sum(bool(request.open_choices) for request in self.requests.values()) > settings.max_waiting
        reasons = {
            Reason.BAD_REQUEST: len(spec.choices) > settings.max_slots,
            Reason.TOO_LONG: len(spec.tokens) >= settings.max_context_tokens,
            Reason.DEADLINE: spec.deadline_s <= self.engine.now,
            Reason.NO_CAPACITY: full,
        }
        assert reasons[reason], f"{spec.key} failed for no reason: {reason}"

    def _assert_kv(self, spec: SequenceSpec, computed: Computed) -> None:
        """The announced blocks hold exactly this request's KV."""
        stands = self.engine.runner.read_kv(computed.blocks, computed.tokens, len(spec.tokens))
        assert stands == context_kv(spec.tokens[: computed.tokens]), f"{spec.key}: announced KV has changed"

    def _expect(self, spec: SequenceSpec) -> Expectation:
        assert spec.key not in self.requests
        context = self.settings.max_context_tokens
        fits = len(spec.tokens) < context
        outputs = {
            choice: reference_tokens(spec.tokens, spec.prompt_tokens, spec.sampling, choice, context) if fits else []
            for choice in spec.choices
        }
        self.requests[spec.key] = Expectation(spec, outputs, set(spec.choices))
        return self.requests[spec.key]
