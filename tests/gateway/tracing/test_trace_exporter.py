"""The queue of traces: bounded, counted, and never waited for."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

import pytest

from baton_gateway.records.trail import KeptTrail, Moment, Trail, TrailFacts, keep
from baton_gateway.reporting.outcome import TraceResult
from baton_gateway.tracing.trace_exporter import BATCH, TraceExporter
from baton_testing.gateway.gateway_process import until


def trail(name: str = "r") -> KeptTrail:
    trail = Trail(0.0)
    trail.mark(1.0, Moment.ENDED, text="finished")
    return keep(trail, TrailFacts(name, "t", "m", "finished", "", 0.0, trace_id="ab" * 16, is_sampled=True))


class Collector:
    """A sender whose collector answers once `may_answer` is set."""

    def __init__(self, problem: str = "") -> None:
        self.problem, self.batches, self.may_answer = problem, list[int](), threading.Event()
        self.asked = threading.Event()
        self.error: Exception | None = None

    def send(self, trails: Sequence[KeptTrail], /) -> str:
        self.asked.set()
        assert self.may_answer.wait(60.0)
        self.batches.append(len(trails))
        if self.error is not None:
            raise self.error
        return self.problem

    def close(self) -> None:
        self.may_answer.set()


class Counts:
    def __init__(self) -> None:
        self.counts = Counter[TraceResult]()

    def __call__(self, result: TraceResult, traces: int) -> None:
        self.counts[result] += traces


async def test_what_finds_the_queue_full_is_dropped_and_counted() -> None:
    collector, counts = Collector(), Counts()
    exporter = TraceExporter(collector, counts, max_waiting=3, linger_s=0.0)
    exporter.start()
    exporter.offer(trail())
    await until(collector.asked.is_set)
    for _ in range(5):
        exporter.offer(trail())  # the collector hangs
    assert counts.counts == {TraceResult.DROPPED: 2}
    collector.may_answer.set()
    await exporter.stop()
    assert counts.counts == {TraceResult.DROPPED: 2, TraceResult.EXPORTED: 4}


async def test_what_waits_at_the_end_is_exported_in_batches() -> None:
    collector, counts = Collector(), Counts()
    collector.may_answer.set()
    exporter = TraceExporter(collector, counts, linger_s=60.0)
    exporter.start()
    for _ in range(BATCH + 5):
        exporter.offer(trail())
    await exporter.stop()
    assert collector.batches == [BATCH, 5]
    assert counts.counts == {TraceResult.EXPORTED: BATCH + 5}


async def test_a_collector_that_hangs_does_not_hold_up_the_end() -> None:
    collector, counts = Collector(), Counts()
    exporter = TraceExporter(collector, counts, linger_s=0.0)
    exporter.start()
    exporter.offer(trail())
    await until(collector.asked.is_set)
    exporter.offer(trail())
    await exporter.stop(within_s=0.01)
    await until(lambda: counts.counts.total() == 2)


@pytest.mark.parametrize("error", [None, RuntimeError("broken")])
async def test_failures_are_counted_and_later_traces_go_on(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    collector, counts = Collector("refused"), Counts()
    collector.may_answer.set()
    collector.error = error
    exporter = TraceExporter(collector, counts, linger_s=0.0)
    exporter.start()
    exporter.offer(trail())
    await until(lambda: counts.counts[TraceResult.FAILED] == 1)
    collector.problem, collector.error = "", None
    exporter.offer(trail())
    await until(lambda: counts.counts[TraceResult.EXPORTED] == 1)
    await exporter.stop()
    assert len([record for record in caplog.records if record.name == "baton.gateway.tracing"]) == 1


async def test_one_that_never_started_stops() -> None:
    counts = Counts()
    exporter = TraceExporter(Collector(), counts)
    exporter.offer(trail())
    await exporter.stop()
    assert counts.counts == {TraceResult.DROPPED: 1}


class EmptiedMeanwhile(deque[KeptTrail]):
    """A queue that another thread empties after the first trail was taken."""

    def popleft(self) -> KeptTrail:
        first = super().popleft()
        self.clear()
        return first


async def test_trails_that_the_end_takes_from_the_thread_do_not_break_it() -> None:
    collector, counts = Collector(), Counts()
    collector.may_answer.set()
    exporter = TraceExporter(collector, counts, linger_s=60.0)
    exporter._waiting = EmptiedMeanwhile()
    exporter.offer(trail())
    exporter.offer(trail())
    exporter.start()
    await exporter.stop()
    assert (collector.batches, counts.counts) == ([1], {TraceResult.EXPORTED: 1})
