"""What can be measured of a running twin: signals for baseline rules, and the telemetry that sizing gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from baton_control.sizing.inputs.observations import (
    MAX_SAMPLE,
    ArrivalReading,
    Lateness,
    Observed,
    PoolSeen,
    StepSeen,
    arrivals_reading,
    number_reading,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.simulator.decode_worker import DecodeWorker
from baton_control.sizing.simulator.prefill_worker import PrefillWorker
from baton_control.sizing.simulator.simulator import Simulator
from baton_control.sizing.slo_sizing import STARTUP_SAFETY
from baton_control.telemetry.store import LATENCY_WINDOW_S
from baton_simulate.baselines.signals import PoolSignals, Signals
from baton_simulate.simulator_summaries import STEPS_TOLD, SimulatorSummaries, present_step
from baton_wire.messages.operator_link import Summary
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.answer_lengths import AnswerLengths


class SimulatorMetrics:
    """Windows over one twin; each reading covers the time since it was last asked for."""

    def __init__(self, twin: Simulator, startup_s: float, targets: Targets) -> None:
        self._twin, self._startup_s, self._targets = twin, startup_s, targets
        self._arrived = {"signals": (0, 0.0), "observed": (0, 0.0)}
        self._ended = 0
        self._served: deque[tuple[float, int, dict[Role, int]]] = deque()
        """(when, requests that ended since the one before, how many of them were late for each pool)"""
        self._answers = AnswerLengths()
        self._random = Random(1)
        self._summaries = SimulatorSummaries(startup_s)

    def signals(self) -> Signals:
        twin = self._twin
        first, last, seconds = self._since("signals")
        recent = range(max(0, last - 200), last)
        count = max(1, len(recent))
        return Signals(
            prefill=self._prefill(),
            decode=self._decode(),
            arrivals_per_s=(last - first) / seconds,
            mean_prompt=sum(twin.prompt[i] for i in recent) / count,
            mean_uncached=sum(twin.prompt[i] - twin.cached[i] for i in recent) / count,
            mean_output=sum(twin.output[i] for i in recent) / count,
        )

    def observed(self) -> Observed:
        ended = self._ended_lately()
        waiting = self._twin.gateway_tokens + sum(worker.queued_tokens for worker in self._twin.prefill)
        return Observed(
            arrivals=self._arrivals(),
            prefill=self._seen(Role.PREFILL),
            decode=self._seen(Role.DECODE),
            queued_tokens=number_reading(float(waiting), "queued tokens"),
            running=number_reading(float(self._running()), "running sequences"),
            served=self._served_lately(ended),
        )

    def steps(self) -> list[StepSeen]:
        """The step that each worker computes now, as often as a worker tells of steps between two decisions.

        Steps of the twin carry no noise, so the same one again says what another like it would.
        """
        told = []
        for role, pool in self._pools():
            for number, worker in enumerate(pool):
                step = present_step(worker)
                if step is not None:
                    told += [StepSeen(role, f"{role.value[0]}{number}", step)] * STEPS_TOLD
        return told

    def summary(self) -> Summary:
        """What a gateway would tell since the last one."""
        return self._summaries.following(self.observed(), self._twin)

    def kinds(self, role: Role) -> dict[str, tuple[int, int]]:
        """Workers of a pool and how many of them are routable, by what they compute on."""
        return self._twin.kinds(role)

    def _pools(self) -> tuple[tuple[Role, Sequence[PrefillWorker | DecodeWorker]], ...]:
        return (Role.PREFILL, self._twin.prefill), (Role.DECODE, self._twin.decode)

    def _running(self) -> int:
        twin = self._twin
        return sum(len(each.batch) for each in twin.prefill) + sum(len(each.active) for each in twin.decode)

    def _since(self, reader: str) -> tuple[int, int, float]:
        first, at = self._arrived[reader]
        self._arrived[reader] = (self._twin.next_arrival, self._twin.now)
        return first, self._twin.next_arrival, max(0.1, self._twin.now - at)

    def _arrivals(self) -> ArrivalReading:
        twin = self._twin
        first, last, seconds = self._since("observed")
        stride = max(1, -(-(last - first) // MAX_SAMPLE))
        sample = [
            RequestShape(twin.prompt[i], self._answers.likely(twin.prompt[i], self._random.random()), twin.cached[i])
            for i in range(first, last, stride)
        ]
        return arrivals_reading(float(last - first), seconds, sample, twin.now, twin.now)

    def _served_lately(self, ended: list[int]) -> dict[Role, Lateness]:
        """What clients saw in the last minute, as far as it has ended."""
        twin, targets = self._twin, self._targets
        late = {
            # Not a number: it was refused.
            Role.PREFILL: sum(not twin.first_s[i] - twin.arrival_s[i] <= targets.ttft_s for i in ended),
            Role.DECODE: sum(
                not twin.done_s[i] - twin.first_s[i] <= targets.tpot_s * max(1, twin.output[i] - 1) for i in ended
            ),
        }
        self._served.append((twin.now, len(ended), late))
        while twin.now - self._served[0][0] > LATENCY_WINDOW_S:
            self._served.popleft()
        requests = sum(count for _, count, _ in self._served)
        return {
            role: Lateness(requests, sum(late[role] for _, _, late in self._served)) for role in POOL_ROLES if requests
        }

    def _ended_lately(self) -> list[int]:
        """Requests that ended since the last call."""
        twin = self._twin
        ended = twin.finished[self._ended :]
        for i in ended:
            self._answers.ended(twin.now, twin.prompt[i], twin.output[i])
        self._answers.look(
            twin.now,
            (
                (twin.prompt[i], max(1, twin.output[i] - (finish - worker.steps)))
                for worker in twin.decode
                for i, (finish, _, _) in worker.active.items()
            ),
        )
        self._ended = len(twin.finished)
        return ended

    def _seen(self, role: Role) -> PoolSeen:
        twin = self._twin
        return PoolSeen(twin.workers(role), twin.routable(role), self._startup_s * STARTUP_SAFETY)

    def _prefill(self) -> PoolSignals:
        twin = self._twin
        pool, ready = twin.routable_prefill, max(1, len(twin.routable_prefill))
        kv = sum(worker.pinned_tokens for worker in pool)
        return PoolSignals(
            workers=twin.workers(Role.PREFILL),
            ready=len(pool),
            running=sum(len(worker.batch) for worker in pool),
            queued=len(twin.gateway) + sum(len(worker.queue) for worker in pool),
            kv_use=kv / ready / twin.model.kv_capacity_tokens,
            kv_tokens=kv,
            queued_tokens=twin.gateway_tokens + sum(worker.queued_tokens for worker in pool),
        )

    def _decode(self) -> PoolSignals:
        twin = self._twin
        pool, ready = twin.routable_decode, max(1, len(twin.routable_decode))
        kv = sum(worker.kv_tokens + worker.reserved_tokens for worker in pool)
        return PoolSignals(
            workers=twin.workers(Role.DECODE),
            ready=len(pool),
            running=sum(len(worker.active) for worker in pool),
            queued=sum(len(worker.waiting) for worker in pool),
            kv_use=kv / ready / twin.model.kv_capacity_tokens,
            kv_tokens=kv,
            queued_tokens=sum(worker.waiting_tokens for worker in pool),
        )
