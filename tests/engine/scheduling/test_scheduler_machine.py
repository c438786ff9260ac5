"""Any order of verbs, results and time: hypothesis looks for the shortest one that breaks a promise.

The promises are in `Workload`: every token is the one of a run alone, books agree after every move, blocks of launched
steps and announced blocks keep their content, and in the end everything has ended and nothing is held.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import SequenceSpec
from baton_testing.engine.toy_engine import FAR, spec
from baton_testing.engine.toy_workload import Workload

CONTEXT = 16

TOKENS = st.integers(1, CONTEXT).flatmap(
    lambda length: st.integers(0, length).map(  # prompts share beginnings and part at any place
        lambda shared: tuple(range(shared)) + tuple(40 - i for i in range(shared, length))
    )
)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    @initialize(
        block_tokens=st.sampled_from((1, 2, 4)),
        spare=st.integers(0, 12),
        max_slots=st.integers(1, 4),
        max_step_tokens=st.sampled_from((2, 8, 32)),
        max_held_share=st.sampled_from((0.0, 0.5, 1.0)),
        prefix_cache=st.booleans(),
    )
    def start(
        self,
        block_tokens: int,
        spare: int,
        max_slots: int,
        max_step_tokens: int,
        max_held_share: float,
        prefix_cache: bool,
    ) -> None:
        self.load = Workload(
            EngineConfig(
                num_blocks=CONTEXT // block_tokens + spare // block_tokens,
                block_tokens=block_tokens,
                max_slots=max_slots,
                max_context_tokens=CONTEXT,
                max_step_tokens=max_step_tokens,
                max_held_share=max_held_share,
                prefix_cache=prefix_cache,
            )
        )

    def _spec(self, tokens: tuple[int, ...], forced: int, extra: int, choices: int, late: bool) -> SequenceSpec:
        self.numbers += 1
        forced = min(forced, len(tokens) - 1)
        return spec(
            self.numbers,
            tokens[: len(tokens) - forced],
            forced=tokens[len(tokens) - forced :],
            max_tokens=forced + extra,
            choices=range(choices),
            stop=range(0, 50, 7),
            deadline_s=self.load.engine.now + 3 if late else FAR,
        )

    @rule(
        tokens=TOKENS,
        forced=st.integers(0, 2),
        extra=st.integers(1, 20),
        choices=st.integers(1, 3),
        late=st.booleans(),
    )
    def submit(self, tokens: tuple[int, ...], forced: int, extra: int, choices: int, late: bool) -> None:
        self.load.submit(self._spec(tokens, forced, extra, choices, late))

    @rule(tokens=TOKENS, choices=st.integers(1, 3), extra=st.integers(1, 3))
    def submit_held(self, tokens: tuple[int, ...], choices: int, extra: int) -> None:
        self.numbers += 1
        self.load.submit(spec(self.numbers, tokens, choices=range(choices), max_tokens=extra, hold=True))

    @rule(tokens=TOKENS, extra=st.integers(1, 20), choices=st.integers(1, 3), late=st.booleans())
    def reserve(self, tokens: tuple[int, ...], extra: int, choices: int, late: bool) -> None:
        self.load.reserve(self._spec(tokens, 0, extra, choices, late))

    @precondition(lambda self: self.load.awaiting_landing())
    @rule(place=st.integers(0, 9))
    def land(self, place: int) -> None:
        waiting = self.load.awaiting_landing()
        self.load.land(waiting[place % len(waiting)])

    @precondition(lambda self: self.load.held() or self.load.awaiting_landing())
    @rule(place=st.integers(0, 9))
    def release(self, place: int) -> None:
        announced = self.load.held() + self.load.awaiting_landing()
        self.load.release(announced[place % len(announced)])

    @precondition(lambda self: self.load.unfinished())
    @rule(place=st.integers(0, 9), whole=st.booleans())
    def cancel(self, place: int, whole: bool) -> None:
        unfinished = self.load.unfinished()
        request = unfinished[place % len(unfinished)]
        self.load.cancel(request, None if whole else min(request.open_choices))

    @rule(place=st.integers(0, 9))
    def grant(self, place: int) -> None:
        keys = list(self.load.requests)
        if keys:
            self.load.engine.scheduler.granted(keys[place % len(keys)], self.load.engine.now)

    @rule(ready=st.booleans(), turns=st.integers(1, 4))
    def turn(self, ready: bool, turns: int) -> None:
        self.load.is_ready = ready
        for _ in range(turns):
            self.load.turn()

    @rule()
    def pass_time(self) -> None:
        self.load.pass_time(1.0)

    def teardown(self) -> None:
        if hasattr(self, "load"):
            self.load.finish()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(derandomize=True, deadline=None, max_examples=120, stateful_step_count=40)
