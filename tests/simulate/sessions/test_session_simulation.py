"""Sessions on simulated workers: the closed loop, caches, and what policies make of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.sizing.inputs.model_shape import LLAMA_8B
from baton_control.sizing.inputs.roofline import worker_model
from baton_simulate.sessions.prefix_cache import BLOCK_TOKENS, BeginningNumbers, PrefixCache
from baton_simulate.sessions.routing_policy import (
    BASELINES,
    LeastLoadRouting,
    PrefixOnlyRouting,
    RoundRobinRouting,
    RoutedTurn,
    SessionStickyRouting,
    SimulatedWorker,
)
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_load import Segment, SessionLoad, SessionTurn, ideal_cached_tokens
from baton_simulate.sessions.session_shapes import SHAPES, SessionShape, drawn_shape
from baton_simulate.sessions.session_simulation import SessionSimulation, simulate_sessions
from baton_simulate.sessions.turn_order import LoopLimits, TurnOrder
from baton_wire.messages.values import Role
from baton_wire.rules.hardware import H200

WORKER = replace(worker_model(LLAMA_8B, H200, max_step_tokens=8192), kv_capacity_tokens=100_000_000)
"""A worker that never has to forget."""


def small(shape: SessionShape, sessions: int = 12) -> SessionLoad:
    return generated_load(replace(shape, sessions=min(sessions, shape.sessions)), 5, "x")


@pytest.mark.parametrize("shape", [*SHAPES.values(), *map(drawn_shape, range(6))])
def test_one_worker_that_never_forgets_reaches_the_ideal_but_for_parts_of_blocks(shape: SessionShape) -> None:
    load = small(shape)
    outcome = simulate_sessions(load, LoopLimits(users=3), LeastLoadRouting(), WORKER, (1, 1))
    assert outcome.turns == len(load.turns)
    assert outcome.ideal_cached_tokens == pytest.approx(sum(ideal_cached_tokens(load)), abs=len(load.turns))
    assert 0 <= outcome.ideal_cached_tokens - outcome.cached_tokens <= BLOCK_TOKENS * outcome.turns
    assert (outcome.moved, outcome.load_spread, outcome.refused) == (0, 0.0, 0)


@pytest.mark.parametrize("name", BASELINES)
def test_a_simulation_is_the_same_every_time(name: str) -> None:
    load = small(SHAPES["subagents"])
    outcomes = {simulate_sessions(load, LoopLimits(users=6), BASELINES[name](), WORKER, (3, 3)) for _ in range(2)}
    assert len(outcomes) == 1


def test_a_policy_without_prefixes_finds_few_and_one_without_load_uses_one_worker() -> None:
    load = small(SHAPES["agents"], 40)
    outcomes = {
        name: simulate_sessions(load, LoopLimits(users=16), make(), WORKER, (4, 8)) for name, make in BASELINES.items()
    }
    share = {name: one.cached_of_ideal or 0.0 for name, one in outcomes.items()}
    assert share["session-sticky"] > 0.9
    assert max(share["round-robin"], share["least-load"]) < 0.8
    assert outcomes["prefix-only"].load_spread == pytest.approx(3.0), "all have one head in common"
    assert outcomes["prefix-only"].moved == 0
    assert outcomes["least-load"].load_spread < 1.0
    assert outcomes["least-load"].ttft_p95_s > outcomes["session-sticky"].ttft_p95_s


def test_a_worker_that_died_has_nothing_cached_and_every_turn_is_answered() -> None:
    load = small(SHAPES["agents"])
    simulation = SessionSimulation(load, LoopLimits(users=4), SessionStickyRouting(), WORKER)
    for role, workers in ((Role.PREFILL, 2), (Role.DECODE, 2)):
        for _ in range(workers):
            simulation.simulator.add(role, 0.0)
    simulation.simulator.run_until(30.0)
    homes = {routed.prefill for routed in simulation.choice.requests}
    assert len(homes) == 2
    simulation.simulator.kill(Role.PREFILL)
    simulation.simulator.add(Role.PREFILL, 40.0)
    simulation.simulator.run_out()
    assert len(simulation.choice.requests) == len(load.turns)
    assert all(done == done for done in simulation.simulator.done_s)
    assert len({routed.prefill for routed in simulation.choice.requests}) == 3
    found = sum(routed.found_tokens or 0 for routed in simulation.choice.requests)
    undisturbed = simulate_sessions(load, LoopLimits(users=4), SessionStickyRouting(), WORKER, (2, 2))
    assert found < undisturbed.cached_tokens - 20_000, "a session or two were computed again"


def test_kv_that_a_decode_worker_holds_is_not_sent_again() -> None:
    turns = (SessionTurn(0, ((1, 50_000),), 2), SessionTurn(0, ((1, 50_000), (2, 100)), 2, after=(0,)))
    slow = replace(WORKER, link_bytes_per_s=1e9)
    simulation = SessionSimulation(SessionLoad("x", turns), LoopLimits(), LeastLoadRouting(), slow)
    simulation.simulator.add(Role.PREFILL, 0.0)
    simulation.simulator.add(Role.DECODE, 0.0)
    simulation.simulator.run_out()
    first, second = (d - f for d, f in zip(simulation.simulator.done_s, simulation.simulator.first_s, strict=True))
    assert first > 50_000 * slow.kv.of(1) / 1e9 * 0.5
    assert second < first / 10


def worker(number: int, cached: int, queued_s: float) -> SimulatedWorker:
    return SimulatedWorker(number, cached, queued_s, int(queued_s * 1e4), int(queued_s * 1e4), 0, 0, 1e-4, 0)


TURN = RoutedTurn(0, 7, ((1, 100),), 100, 5)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RoundRobinRouting(), [1, 2, 0]),
        (LeastLoadRouting(), [2, 2, 2]),
        (PrefixOnlyRouting(), [1, 1, 1]),
        (SessionStickyRouting(), [2, 2, 2]),
    ],
)
def test_baselines_choose_by_what_they_are_called(
    policy: RoundRobinRouting | LeastLoadRouting | PrefixOnlyRouting | SessionStickyRouting, expected: list[int]
) -> None:
    workers = [worker(4, 0, 1.0), worker(5, 64, 9.0), worker(6, 0, 0.5)]
    assert [policy.choose(TURN, workers, workers, 0.0)[0] for _ in range(3)] == expected


def test_a_sticky_session_finds_another_home_when_its_own_is_gone() -> None:
    policy = SessionStickyRouting()
    workers = [worker(4, 0, 1.0), worker(5, 0, 0.5), worker(6, 0, 2.0)]
    assert policy.choose(TURN, workers, workers, 0.0) == (1, 1)
    assert policy.choose(TURN, [workers[0], workers[2]], workers, 0.0) == (0, 1)
    assert policy.choose(TURN, workers, workers, 0.0) == (0, 1), "and stays there"


@dataclass
class Sending:
    """Carries a `TurnOrder` out: each answer takes a second."""

    order: TurnOrder
    now: float = 0.0
    due: list[tuple[float, int]] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)
    sent: list[tuple[float, int]] = field(default_factory=list)
    most: int = 0

    def run(self) -> Sending:
        self.due += self.order.begin()
        while self.due or self.running:
            self.now = min(at for at, _ in (*self.due, *self.running))
            for entry in [entry for entry in self.due if entry[0] <= self.now]:
                self.due.remove(entry)
                if self.order.may_send(entry[1]):
                    self.running.append((self.now + 1.0, entry[1]))
                    self.sent.append((self.now, entry[1]))
            self.most = max(self.most, len(self.running))
            for entry in [entry for entry in self.running if entry[0] <= self.now]:
                self.running.remove(entry)
                self.due += self.order.ended(entry[1], self.now)
        return self


@given(st.integers(0, 40), st.none() | st.integers(1, 4), st.none() | st.integers(1, 4))
def test_every_turn_is_sent_once_after_those_that_it_waits_for(
    number: int, users: int | None, in_flight: int | None
) -> None:
    shape = replace(drawn_shape(number), sessions=5)
    load = generated_load(replace(shape, turns=replace(shape.turns, high=min(6, shape.turns.high))), number, "x")
    sending = Sending(TurnOrder(load, LoopLimits(users, in_flight, 0.1))).run()
    sent_s = {place: at_s for at_s, place in sending.sent}
    assert sorted(sent_s) == list(range(len(load.turns)))
    for place, turn in enumerate(load.turns):
        assert all(sent_s[place] >= sent_s[before] + 1.0 + 0.1 * turn.think_s - 1e-9 for before in turn.after)
    if in_flight is not None:
        assert sending.most <= in_flight
    if users is not None:
        spans = [
            [sent_s[place] for place, turn in enumerate(load.turns) if turn.session == session]
            for session in range(shape.sessions)
        ]
        at_once = [sum(min(span) <= at <= max(span) for span in spans) for at in sent_s.values()]
        assert max(at_once) <= users


def test_turns_after_the_end_are_left_out_with_all_that_follow_and_the_next_session_begins() -> None:
    turns = (
        SessionTurn(0, ((1, 5),), 1),
        SessionTurn(0, ((1, 5), (2, 5)), 1, after=(0,), think_s=500.0),
        SessionTurn(0, ((1, 5), (2, 5), (3, 5)), 1, after=(1,)),
        SessionTurn(1, ((4, 5),), 1),
    )
    sending = Sending(TurnOrder(SessionLoad("x", turns), LoopLimits(users=1, duration_s=100.0))).run()
    assert sending.sent == [(0.0, 0), (1.0, 3)]


Prompts = list[list[Segment]]
PROMPTS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300)), min_size=1, max_size=5), max_size=12)


@given(PROMPTS, st.integers(0, 900))
def test_a_cache_keeps_whole_beginnings_within_its_capacity(prompts: Prompts, capacity: int) -> None:
    numbers, cache = BeginningNumbers(), PrefixCache()
    sent: list[Sequence[Segment]] = []
    for prompt in prompts:
        found = cache.cached_tokens(numbers.beginnings(prompt))
        best = max((common(prompt, other) for other in sent), default=0)
        assert found % BLOCK_TOKENS == 0
        assert found <= min(best, sum(tokens for _, tokens in prompt) - 1)
        cache.add(numbers.beginnings(prompt), capacity)
        sent.append(prompt)
        assert cache.tokens <= capacity
        if sum(tokens for _, tokens in prompt) <= capacity:
            assert cache.cached_tokens(numbers.beginnings(prompt)) == (sum(t for _, t in prompt) - 1) // 64 * 64


def common(one: Sequence[Segment], other: Sequence[Segment]) -> int:
    tokens = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        tokens += a[1]
    return tokens


def test_the_least_recently_used_beginnings_go_first() -> None:
    numbers, cache = BeginningNumbers(), PrefixCache()
    first, second, third = (numbers.beginnings([(0, 64), (number, 64)]) for number in (1, 2, 3))
    for prompt in (first, second, first, third):
        cache.add(prompt, 3 * 64)
    assert [cache.cached_tokens((*prompt, (99, 1))) for prompt in (first, second, third)] == [128, 64, 128]


def test_the_dice_of_a_shape_do_not_depend_on_those_of_others() -> None:
    random.seed(1)
    one = generated_load(SHAPES["short"], 1, "x")
    random.seed(2)
    assert generated_load(SHAPES["short"], 1, "x") == one
