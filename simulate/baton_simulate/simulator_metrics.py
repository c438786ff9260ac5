"""Measurements of a running simulator: signals for baseline rules, and the telemetry that sizing gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from baton_control.sizing.inputs.context_use import ContextUse, merge_context_counts
from baton_control.sizing.inputs.observations import (
    MAX_SAMPLE,
    Lateness,
    MeasuredArrivals,
    Measurements,
    ObservedPool,
    ObservedStep,
    measure_arrivals,
    measure_number,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.simulator.decode_worker import DecodeWorker
from baton_control.sizing.simulator.prefill_worker import PrefillWorker
from baton_control.sizing.simulator.simulator import Simulator
from baton_control.sizing.slo_sizing import STARTUP_SAFETY
from baton_control.telemetry.store import CONTEXT_MEMORY_S, LATENCY_WINDOW_S
from baton_simulate.baselines.signals import PoolSignals, Signals
from baton_simulate.simulator_summaries import STEPS_REPORTED, SimulatorSummaries, present_step
from baton_wire.messages.measures import ContextCounts
from baton_wire.messages.operator_link import Summary
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.answer_lengths import AnswerLengths


class SimulatorMetrics:
    """Windows over one simulator; each measurement covers the time since the last one."""

    def __init__(self, simulator: Simulator, startup_s: float, targets: Targets) -> None:
        self._simulator, self._startup_s, self._targets = simulator, startup_s, targets
        self._arrived = {"signals": (0, 0.0), "observed": (0, 0.0)}
        self._ended = 0
        self._served: deque[tuple[float, int, dict[Role, int]]] = deque()
        """(when, requests that ended since the entry before, how many were late for each pool)"""
        self._answers = AnswerLengths()
        self._context_counts: deque[tuple[float, ContextCounts]] = deque()
        self._random = Random(1)
        self._summaries = SimulatorSummaries(startup_s)

    def signals(self) -> Signals:
        simulator = self._simulator
        first, last, seconds = self._since("signals")
        recent = range(max(0, last - 200), last)
        count = max(1, len(recent))
        return Signals(
            prefill=self._prefill(),
            decode=self._decode(),
            arrivals_per_s=(last - first) / seconds,
            mean_prompt=sum(simulator.prompt[i] for i in recent) / count,
            mean_uncached=sum(simulator.prompt[i] - simulator.cached[i] for i in recent) / count,
            mean_output=sum(simulator.output[i] for i in recent) / count,
        )

    def measure(self) -> Measurements:
        ended = self._ended_lately()
        waiting = self._simulator.gateway_missing_tokens + sum(
            worker.queued_tokens for worker in self._simulator.prefill
        )
        return Measurements(
            arrivals=self._arrivals(),
            prefill=self._seen(Role.PREFILL),
            decode=self._seen(Role.DECODE),
            queued_tokens=measure_number(float(waiting), "queued tokens"),
            running=measure_number(float(self._running()), "running sequences"),
            served=self._served_lately(ended),
            contexts=self._contexts(),
        )

    def steps(self) -> list[ObservedStep]:
        """The step that each worker computes now, as often as a worker reports steps between two decisions.

        Simulated steps carry no noise, so the same step again stands for another one like it.
        """
        steps = []
        for role, pool in self._pools():
            for number, worker in enumerate(pool):
                step = present_step(worker)
                if step is not None:
                    steps += [ObservedStep(role, f"{role.value[0]}{number}", step)] * STEPS_REPORTED
        return steps

    def summary(self) -> Summary:
        """The report of a gateway since the last one."""
        return self._summaries.following(self.measure(), self._simulator)

    def kinds(self, role: Role) -> dict[str, tuple[int, int]]:
        """(workers, routable workers) of a pool by type of accelerator."""
        return self._simulator.kinds(role)

    def _pools(self) -> tuple[tuple[Role, Sequence[PrefillWorker | DecodeWorker]], ...]:
        return (Role.PREFILL, self._simulator.prefill), (Role.DECODE, self._simulator.decode)

    def _running(self) -> int:
        simulator = self._simulator
        prompts = sum(len(worker.batch) for worker in simulator.prefill)
        return prompts + sum(len(worker.active) for worker in simulator.decode)

    def _since(self, reader: str) -> tuple[int, int, float]:
        first, at = self._arrived[reader]
        self._arrived[reader] = (self._simulator.next_arrival, self._simulator.now)
        return first, self._simulator.next_arrival, max(0.1, self._simulator.now - at)

    def _arrivals(self) -> MeasuredArrivals:
        simulator = self._simulator
        first, last, seconds = self._since("observed")
        stride = max(1, -(-(last - first) // MAX_SAMPLE))
        sample = []
        for i in range(first, last, stride):
            output = self._answers.likely(simulator.prompt[i], self._random.random())
            cached = simulator.choice.reported_cached(i, simulator)
            sample.append(RequestShape(simulator.prompt[i], output, cached))
        return measure_arrivals(float(last - first), seconds, sample, simulator.now, simulator.now)

    def _contexts(self) -> ContextUse | None:
        now = self._simulator.now
        counts = self._simulator.choice.take_context_counts(now)
        if counts is None:
            return None
        self._context_counts.append((now, counts))
        while now - self._context_counts[0][0] > CONTEXT_MEMORY_S:
            self._context_counts.popleft()
        return merge_context_counts((earlier for _, earlier in self._context_counts), [counts])

    def _served_lately(self, ended: list[int]) -> dict[Role, Lateness]:
        """The requests that ended in the last minute, as clients saw them."""
        simulator, targets = self._simulator, self._targets
        first_s, done_s, output = simulator.first_s, simulator.done_s, simulator.output
        late = {
            # Not a number: the request was refused.
            Role.PREFILL: sum(not first_s[i] - simulator.arrival_s[i] <= targets.ttft_s for i in ended),
            Role.DECODE: sum(not done_s[i] - first_s[i] <= targets.tpot_s * max(1, output[i] - 1) for i in ended),
        }
        self._served.append((simulator.now, len(ended), late))
        while simulator.now - self._served[0][0] > LATENCY_WINDOW_S:
            self._served.popleft()
        requests = sum(count for _, count, _ in self._served)
        return {
            role: Lateness(requests, sum(late[role] for _, _, late in self._served)) for role in POOL_ROLES if requests
        }

    def _ended_lately(self) -> list[int]:
        """Requests that ended since the last call."""
        simulator = self._simulator
        ended = simulator.finished[self._ended :]
        for i in ended:
            self._answers.ended(simulator.now, simulator.prompt[i], simulator.output[i])
        self._answers.look(
            simulator.now,
            (
                (simulator.prompt[i], max(1, simulator.output[i] - (finish - worker.steps)))
                for worker in simulator.decode
                for i, (finish, _, _) in worker.active.items()
            ),
        )
        self._ended = len(simulator.finished)
        return ended

    def _seen(self, role: Role) -> ObservedPool:
        simulator = self._simulator
        return ObservedPool(simulator.workers(role), simulator.routable(role), self._startup_s * STARTUP_SAFETY)

    def _prefill(self) -> PoolSignals:
        simulator = self._simulator
        pool, ready = simulator.routable_prefill, max(1, len(simulator.routable_prefill))
        kv = sum(worker.pinned_tokens for worker in pool)
        return PoolSignals(
            workers=simulator.workers(Role.PREFILL),
            ready=len(pool),
            running=sum(len(worker.batch) for worker in pool),
            queued=len(simulator.gateway) + sum(len(worker.queue) for worker in pool),
            kv_use=kv / ready / simulator.model.kv_capacity_tokens,
            kv_tokens=kv,
            queued_tokens=simulator.gateway_tokens + sum(worker.queued_tokens for worker in pool),
        )

    def _decode(self) -> PoolSignals:
        simulator = self._simulator
        pool, ready = simulator.routable_decode, max(1, len(simulator.routable_decode))
        kv = sum(worker.kv_tokens + worker.reserved_tokens for worker in pool)
        return PoolSignals(
            workers=simulator.workers(Role.DECODE),
            ready=len(pool),
            running=sum(len(worker.active) for worker in pool),
            queued=sum(len(worker.waiting) for worker in pool),
            kv_use=kv / ready / simulator.model.kv_capacity_tokens,
            kv_tokens=kv,
            queued_tokens=sum(worker.waiting_tokens for worker in pool),
        )
