"""A load of sessions on simulated workers: the closed loop on the simulator's clock, and what came of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isfinite

import numpy as np

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, workload_of
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.sessions.routing_policy import RoutedTurn, RoutingPolicy
from baton_simulate.sessions.session_choice import SessionChoice
from baton_simulate.sessions.session_load import IdealCache, SessionLoad
from baton_simulate.sessions.turn_order import LoopLimits, TurnOrder
from baton_wire.messages.values import POOL_ROLES, Role

PATIENCE_S = 600.0
"""A client gives up when its first token has not come by then."""


class SessionSimulation:
    """A simulator that is fed by a load of sessions. Its pools may be changed between two calls of `run_until`."""

    def __init__(
        self,
        load: SessionLoad,
        limits: LoopLimits,
        policy: RoutingPolicy,
        model: WorkerModel,
        ttft_s: float | None = None,
    ) -> None:
        """`ttft_s`: the target by which prompts wait their turn; None: they go in order of arrival."""
        self.load = load
        self.choice = SessionChoice(policy)
        self.simulator = Simulator(model, workload_of([], []), patience_s=PATIENCE_S, ttft_s=ttft_s, choice=self.choice)
        self.simulator.on_due = self._due
        self.simulator.on_finish = self._finished
        self._order = TurnOrder(load, limits)
        self._ideal = IdealCache()
        for at_s, place in self._order.begin():
            self.simulator.wake_at(at_s, place)

    @property
    def is_over(self) -> bool:
        """True when every turn that is sent has ended."""
        return self._order.is_over

    def _due(self, place: int) -> None:
        if self._order.may_send(place):
            self._send(place)

    def _send(self, place: int) -> None:
        turn = self.load.turns[place]
        tokens, ideal = turn.prompt_tokens, self._ideal.add(turn.prompt)
        self.choice.register(RoutedTurn(place, turn.session, turn.prompt, tokens, turn.output_tokens), ideal)
        self.simulator.arrive(tokens, turn.output_tokens, ideal)

    def _finished(self, request: int) -> None:
        place, now = self.choice.requests[request].turn.place, self.simulator.now
        done_s = self.simulator.done_s[request]
        for at_s, following in self._order.ended(place, max(now, done_s) if isfinite(done_s) else now):
            self.simulator.wake_at(at_s, following)


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """The figures of a simulated load of sessions. Times are seconds, percentiles those of all turns that ended."""

    turns: int
    refused: int
    prompt_tokens: int
    ideal_cached_tokens: int
    """Tokens that an infinite cache shared by all workers would have found."""
    cached_tokens: int
    cached_of_ideal: float | None
    """None: nothing could have been cached."""
    load_spread: float
    """The most prompt work of a prefill worker over the mean, less one."""
    moved: int
    """Turns that were not sent to the prefill worker that had the longest beginning cached."""
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p95_s: float
    e2e_p95_s: float
    interactivity_p50: float
    """Output tokens over the time from sending to the last token: half of the turns reach this."""
    interactivity_p90: float
    output_tokens_per_s: float
    output_tokens_per_s_and_accelerator: float


def simulate_sessions(
    load: SessionLoad,
    limits: LoopLimits,
    policy: RoutingPolicy,
    model: WorkerModel,
    sizes: tuple[int, int],
    ttft_s: float | None = None,
) -> SessionOutcome:
    """Carry out a load on fixed pools. `sizes`: prefill and decode workers."""
    simulation = SessionSimulation(load, limits, policy, model, ttft_s)
    for role, workers in zip(POOL_ROLES, sizes, strict=True):
        for _ in range(workers):
            simulation.simulator.add(role, 0.0)
    simulation.simulator.run_out()
    return outcome(simulation, sum(a * n for a, n in zip(model.accelerators, sizes, strict=True)))


def outcome(simulation: SessionSimulation, accelerators: float) -> SessionOutcome:
    """The figures of a simulation that has run out."""
    simulator, requests = simulation.simulator, simulation.choice.requests
    ttft, tpot = simulator.latencies()
    done = np.array(simulator.done_s)
    e2e = np.where(np.isnan(done), np.inf, done) - np.array(simulator.arrival_s)
    output = np.array(simulator.output)
    served = np.isfinite(e2e)
    speeds = np.sort(output[served] / np.maximum(1e-9, e2e[served]))
    sent = [routed for routed in requests if routed.found_tokens is not None]
    cached, ideal = sum(routed.found_tokens or 0 for routed in sent), sum(routed.ideal_tokens for routed in requests)
    seconds = float(np.max(done[served])) - simulator.arrival_s[0] if served.any() else 0.0
    rate = float(output[served].sum()) / seconds if seconds > 0 else 0.0
    return SessionOutcome(
        turns=len(requests),
        refused=simulator.rejected,
        prompt_tokens=sum(routed.turn.tokens for routed in requests),
        ideal_cached_tokens=ideal,
        cached_tokens=cached,
        cached_of_ideal=cached / ideal if ideal else None,
        load_spread=_spread(simulation),
        moved=sum((routed.found_tokens or 0) < routed.best_tokens for routed in sent),
        ttft_p50_s=_percentile(ttft[served], 50),
        ttft_p95_s=_percentile(ttft[served], 95),
        tpot_p95_s=_percentile(tpot[served], 95),
        e2e_p95_s=_percentile(e2e[served], 95),
        interactivity_p50=_percentile(speeds, 50),
        interactivity_p90=_percentile(speeds, 10),
        output_tokens_per_s=rate,
        output_tokens_per_s_and_accelerator=rate / accelerators,
    )


def _spread(simulation: SessionSimulation) -> float:
    """How much more than the mean the busiest prefill worker computed."""
    prefill = simulation.simulator.model.prefill
    work: dict[int, float] = defaultdict(float)
    for routed in simulation.choice.requests:
        if routed.prefill is not None and routed.found_tokens is not None:
            work[routed.prefill] += prefill.prompt_s(routed.turn.tokens - routed.found_tokens, routed.found_tokens)
    workers = max(len(work), simulation.simulator.workers(Role.PREFILL))
    mean = sum(work.values()) / max(1, workers)
    return max(work.values(), default=0.0) / mean - 1.0 if mean else 0.0


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")
