"""Builders of engine requests, and a driver that runs a scheduler with the toy runner and keeps what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import (
    Computed,
    Drawn,
    Failed,
    Prefilled,
    Queued,
    Reserved,
    SchedulerEvent,
    SequenceSpec,
)
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.runners import ToyRunner, context_kv, draw, reference_tokens
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, RequestKey, SamplingParams

FAR = 1e9
"""A deadline that no test reaches."""


def key(number: int, attempt: int = 1) -> RequestKey:
    return RequestKey(number.to_bytes(16, "big"), attempt)


def spec(  # noqa: PLR0913 - fields of a request, keyword only
    number: int,
    tokens: int | Sequence[int],
    *,
    max_tokens: int = 8,
    forced: Sequence[int] = (),
    choices: Sequence[int] = (0,),
    stop: Sequence[int] = (),
    min_tokens: int = 0,
    salt: str = "",
    deadline_s: float = FAR,
    hold: bool = False,
    attempt: int = 1,
) -> SequenceSpec:
    """A request; `tokens` as a number means that many ids that differ between requests."""
    prompt = tuple((number * 1000 + i) % 997 for i in range(tokens)) if isinstance(tokens, int) else tuple(tokens)
    sampling = SamplingParams(
        max_tokens=max_tokens, seed=number, stop_token_ids=tuple(stop), min_tokens=min(min_tokens, max_tokens)
    )
    return SequenceSpec(
        key(number, attempt),
        prompt + tuple(forced),
        len(prompt),
        tuple(choices),
        sampling,
        salt,
        deadline_s,
        hold,
    )


def config(num_blocks: int = 64, block_tokens: int = 4, **changes: object) -> EngineConfig:
    """A small engine: 64 blocks of 4 tokens, 8 slots, contexts of 64, 32 prefill tokens a step."""
    values: dict[str, object] = {"max_slots": 8, "max_context_tokens": 64, "max_step_tokens": 32} | changes
    return EngineConfig(num_blocks=num_blocks, block_tokens=block_tokens, **values)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class Engine:
    """A scheduler, a toy runner and everything that came out, checked after every move."""

    scheduler: Scheduler
    runner: ToyRunner
    stepper: Stepper
    now: float = 0.0
    outputs: dict[tuple[RequestKey, int], list[int]] = field(default_factory=dict)
    finishes: dict[tuple[RequestKey, int], Finish] = field(default_factory=dict)
    first_index: dict[tuple[RequestKey, int], int] = field(default_factory=dict)
    """Index of each choice's first token: how many were forced."""
    log: list[SchedulerEvent] = field(default_factory=list)

    def take_events(self) -> list[SchedulerEvent]:
        """New events, their tokens kept: each choice's come without gap, repeat or anything after its end."""
        events = self.scheduler.events()
        self.log += events
        for event in events:
            if isinstance(event, Drawn):
                place = event.key, event.choice
                assert place not in self.finishes, f"{event} after the finish"
                outputs = self.outputs.setdefault(place, [])
                first = self.first_index.setdefault(place, event.first_index)
                assert event.first_index - first == len(outputs), f"{event} leaves a gap or repeats"
                outputs += event.ids
                if event.finish is not None:
                    self.finishes[place] = event.finish
        self.scheduler.check()
        return events

    def turn(self) -> bool:
        moved = self.stepper.turn(self.now)
        self.take_events()
        return moved

    def run(self, turns: int = 10_000) -> None:
        """Until nothing moves any more. Fails when that takes more turns than it ever should."""
        for _ in range(turns):
            if not self.turn():
                return
        raise AssertionError(f"still moving after {turns} turns")

    def land(self, request: SequenceSpec, reserved: Reserved) -> None:
        """Do what prefill worker and transfer do: the missing KV and the first tokens arrive, verified."""
        firsts = land(self.runner, request, reserved)
        self.scheduler.landed(request.key, firsts, self.now)
        self.take_events()

    def plans(self) -> list[StepPlan]:
        return self.runner.plans

    def failures(self) -> list[Failed]:
        return [event for event in self.log if isinstance(event, Failed)]

    def computed(self) -> list[Computed]:
        return [event for event in self.log if isinstance(event, Computed)]

    def prefilled(self) -> list[Prefilled]:
        return [event for event in self.log if isinstance(event, Prefilled)]

    def reserved(self) -> list[Reserved]:
        return [event for event in self.log if isinstance(event, Reserved)]

    def queued(self) -> list[Queued]:
        return [event for event in self.log if isinstance(event, Queued)]

    def result(self, request: SequenceSpec, choice: int = 0) -> list[int]:
        """Outputs of one choice so far, forced ones first."""
        return [*request.tokens[request.prompt_tokens :], *self.outputs.get((request.key, choice), [])]

    def assert_exact(self, request: SequenceSpec) -> None:
        """Every choice finished with the tokens of the same request computed alone."""
        for choice in request.choices:
            assert (request.key, choice) in self.finishes, f"{request.key} choice {choice} has not finished"
            assert self.result(request, choice) == self.expected(request, choice)

    def expected(self, request: SequenceSpec, choice: int = 0) -> list[int]:
        return reference_tokens(
            request.tokens,
            request.prompt_tokens,
            request.sampling,
            choice,
            self.scheduler.config.max_context_tokens,
        )


def land(runner: ToyRunner, request: SequenceSpec, reserved: Reserved) -> tuple[FirstToken, ...]:
    """Write the KV of [cached_tokens, end) into the reserved blocks and draw the first tokens, as P would."""
    kv = context_kv(request.tokens)
    runner.write_kv(reserved.blocks, kv, reserved.cached_tokens)
    prompt, forced = request.tokens[: request.prompt_tokens], request.tokens[request.prompt_tokens :]
    sampling = request.sampling
    firsts: list[FirstToken] = []
    for choice in request.choices:
        token = draw(kv, sampling, choice, prompt, forced)
        stops = token in sampling.stop_token_ids and len(forced) >= sampling.min_tokens
        is_last = len(forced) + 1 == sampling.max_tokens
        finish = Finish.STOP if stops else Finish.LENGTH if is_last else None
        firsts.append(FirstToken(choice, token, None, finish))
    return tuple(firsts)


def engine(
    settings: EngineConfig | None = None,
    is_ready: Callable[[], bool] = lambda: True,
    may_draw: Callable[[SamplingParams], bool] = lambda sampling: True,
) -> Engine:
    """An engine on the toy runner; `is_ready` false forces the one-step-ahead path. `may_draw`: as for a scheduler."""
    settings = settings or config()
    scheduler = Scheduler(settings, may_draw)
    runner = ToyRunner(settings.block_tokens, scheduler.pool, is_ready, settings.windows)
    return Engine(scheduler, runner, Stepper(scheduler, runner))
