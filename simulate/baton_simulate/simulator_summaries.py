"""Summaries of a running simulator, as a gateway would send them to the operator."""

from __future__ import annotations

from math import isfinite

from baton_control.sizing.inputs.observations import Arrivals, Known, Measurements
from baton_control.sizing.simulator.decode_worker import DecodeWorker
from baton_control.sizing.simulator.prefill_worker import PrefillWorker
from baton_control.sizing.simulator.simulator import Simulator
from baton_wire.messages.measures import (
    ArrivalCounts,
    Backlog,
    RequestLengths,
    Served,
    SketchData,
    StepTiming,
    WorkerCondition,
    WorkerMeasures,
)
from baton_wire.messages.operator_link import Summary
from baton_wire.messages.values import Address, Role
from baton_wire.sketch import Sketch

STEPS_REPORTED = 8
"""Steps of a worker in a summary, as many as in a state frame; two summaries of 5 s may have 64."""
NOWHERE = Address("simulator", 1)
NOTHING = SketchData()


def present_step(worker: PrefillWorker | DecodeWorker, number: int = 0) -> StepTiming | None:
    """The step that a worker computes now; None: none, or one that it shares with the work of before a flip."""
    if isinstance(worker, DecodeWorker):
        if not worker.active:
            return None
        seconds = worker.model.decode.seconds(len(worker.active), worker.kv_tokens)
        return StepTiming(number, 0, 0.0, len(worker.active), worker.kv_tokens, seconds)
    if not worker.batch or not (worker.former is None or worker.former.is_dead):
        return None
    return StepTiming(number, worker.batch_tokens, worker.batch_pairs, 0, 0, worker.busy_until - worker.started_s)


class SimulatorSummaries:
    """One summary after the other. Each worker has an epoch of its own, as a process has."""

    def __init__(self, startup_s: float) -> None:
        self._startup_s = startup_s
        self._number = self._steps = self._ended = self._rejected = 0
        self._reported_s = 0.0
        self._epochs: dict[int, tuple[PrefillWorker | DecodeWorker, bytes]] = {}
        """(worker, epoch) of running workers, by identity."""
        self._begun = 0

    def following(self, seen: Measurements, simulator: Simulator) -> Summary:
        """Everything since the last one. `seen`: demand since then."""
        self._number += 1
        seconds, self._reported_s = simulator.now - self._reported_s, simulator.now
        waiting = len(simulator.gateway)
        queued = seen.queued_tokens.value if isinstance(seen.queued_tokens, Known) else 0.0
        sleeps = not (simulator.routable_prefill and simulator.routable_decode)
        return Summary(
            number=self._number,
            at_s=simulator.now,
            seconds=seconds,
            arrived=_arrived(seen),
            served=self._served(simulator),
            backlog=Backlog(waiting, waiting if sleeps else 0, 0.0, int(queued)),
            workers=self._workers(simulator),
            workers_left_out=0,
            config_hash="",
        )

    def _served(self, simulator: Simulator) -> Served:
        ttft, tpot = Sketch(), Sketch()
        for i in simulator.finished[self._ended :]:
            if isfinite(simulator.first_s[i]):
                ttft.add(simulator.first_s[i] - simulator.arrival_s[i])
                if simulator.output[i] > 1:
                    tpot.add((simulator.done_s[i] - simulator.first_s[i]) / (simulator.output[i] - 1))
        self._ended = len(simulator.finished)
        unserved, self._rejected = simulator.rejected - self._rejected, simulator.rejected
        return Served(ttft.data(), tpot.data(), unserved)

    def _workers(self, simulator: Simulator) -> tuple[WorkerMeasures, ...]:
        running = [
            worker
            for pool in (simulator.prefill, simulator.decode)
            for worker in pool
            if worker.ready_s <= simulator.now and not worker.is_dead
        ]
        self._epochs = {id(worker): (worker, self._epoch(worker)) for worker in running}
        return tuple(self._measures(worker) for worker in running)

    def _epoch(self, worker: PrefillWorker | DecodeWorker) -> bytes:
        known = self._epochs.get(id(worker))
        if known is not None:
            return known[1]
        self._begun += 1
        return self._begun.to_bytes(16, "big")

    def _measures(self, worker: PrefillWorker | DecodeWorker) -> WorkerMeasures:
        is_prefill = isinstance(worker, PrefillWorker)
        steps = []
        for _ in range(STEPS_REPORTED):
            self._steps += 1
            step = present_step(worker, self._steps)
            steps += [] if step is None else [step]
        return WorkerMeasures(
            role=Role.PREFILL if is_prefill else Role.DECODE,
            epoch=self._epochs[id(worker)][1],
            template_hash=worker.kind or "equal",
            address=NOWHERE,
            condition=WorkerCondition.DRAINING if worker.draining else WorkerCondition.LIVE,
            has_partner=True,
            running=len(worker.batch if isinstance(worker, PrefillWorker) else worker.active),
            waiting=0,
            waiting_tokens=0,  # counted with what waits at the gateway
            block_tokens=1,
            blocks_total=worker.model.kv_capacity_tokens,
            blocks_free=None,
            kv_bytes=None,
            startup_s=self._startup_s,
            timings=tuple(steps),
        )


def _arrived(seen: Measurements) -> ArrivalCounts:
    if not isinstance(seen.arrivals, Arrivals):
        return ArrivalCounts(0, 0, 0, NOTHING, NOTHING, NOTHING)
    lengths = tuple(
        RequestLengths(shape.prompt_tokens, shape.output_tokens, shape.cached_tokens) for shape in seen.arrivals.sample
    )
    return ArrivalCounts(seen.arrivals.count, 0, 0, NOTHING, NOTHING, NOTHING, lengths)
