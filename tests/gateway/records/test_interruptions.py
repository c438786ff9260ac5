"""Stalls of the gateway's process and silences of workers explain the time that a request waited for them, and no
other time."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from baton_gateway.records.interruptions import BUSY, MAX_OF_REQUEST, NOT_RUN, Interruptions
from baton_gateway.records.parts import Part
from baton_gateway.records.record_builder import build_record
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_gateway.reporting.metrics import watch_loop_lag
from baton_testing.simulation.gateway import check_tiling
from baton_wire.messages.values import LegTimes

RUN, P, D = b"r" * 16, b"p" * 16, b"d" * 16
FACTS = TrailFacts("id", "t", "m", "finished", "", 0.0)


def answered(
    *stops: tuple[float, float, bytes],
    tokenised: float = 0.01,
    there: float = 0.005,
    prefill: float = 0.1,
    back: float = 0.005,
    gap: float = 0.01,
) -> RequestRecord:
    """Return the record of a request from second 100 on, with the interruptions."""
    trail, now = Trail(100.0, 0.05), 100.0
    trail.mark(now, Moment.OFFERED)
    trail.mark(now, Moment.ADMITTED)
    now += tokenised
    trail.mark(now, Moment.TOKENISED)
    trail.routed(now, RUN, 1, P, D, "disaggregated")
    sent = now
    now += there + prefill + back
    trail.arrived(now, RUN, P, LegTimes(prefill, 0.0, prefill))
    now += 0.01
    trail.arrived(now, RUN, D, LegTimes(now - sent, reserved_s=0.0, landed_s=now - sent))
    now += gap
    if gap > trail.gap_target_s:
        trail.slow(gap, now, 0)
    trail.mark(now, Moment.ENDED, text="finished")
    trail.mark(now, Moment.CLOSED)
    interruptions = Interruptions(lambda: 0.0)
    for from_s, until_s, worker in stops:
        if worker:
            interruptions.silent(worker, from_s, until_s)
        else:
            interruptions.expect(from_s)
            interruptions.fired(until_s)
    record = build_record(keep(trail, FACTS, interruptions))
    check_tiling(record)
    return record


def largest(record: RequestRecord) -> tuple[str, str]:
    """Return the largest part, and the worker of its longest span."""
    part = record.parts()[0][0]
    longest = max((span for span in record.spans if span.part == part), key=lambda span: span.duration_ns)
    return part, longest.worker


def seconds(record: RequestRecord, part: Part) -> float:
    return sum(span.duration_ns for span in record.spans if span.part == part) / 1e9


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (answered((100.02, 103.0, b""), there=3.0), (Part.GATEWAY_STALLED, "")),
        (answered((100.12, 103.1, b""), back=3.0), (Part.GATEWAY_STALLED, "")),
        (answered((100.14, 103.1, b""), gap=3.0), (Part.GATEWAY_STALLED, "")),
        (answered((100.0, 103.0, b""), tokenised=3.0), (Part.GATEWAY_STALLED, "")),
        (answered((100.02, 103.0, P), there=3.0), (Part.WORKER_SILENT, "70707070")),
        (answered((100.02, 103.0, P), prefill=3.0), (Part.WORKER_SILENT, "70707070")),
        (answered((100.14, 103.1, D), gap=3.0), (Part.WORKER_SILENT, "64646464")),
    ],
)
def test_an_interruption_that_the_request_waited_for_is_the_largest_part(
    record: RequestRecord, expected: tuple[str, str]
) -> None:
    assert largest(record) == expected, record.spans
    assert 2.8 <= seconds(record, Part(expected[0])) <= 3.0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (answered((100.5, 101.0, b""), tokenised=3.0), Part.TOKENISING),
        (answered((100.5, 101.0, b""), prefill=3.0), Part.PREFILL),
        (answered((100.2, 103.1, P), gap=3.0), Part.SLOW_GAPS),
        (answered((100.02, 103.0, D), prefill=3.0), Part.PREFILL),
        (answered((90.0, 99.9, b""), tokenised=3.0), Part.TOKENISING),
    ],
)
def test_an_interruption_that_delayed_nothing_of_the_request_is_not_in_its_record(
    record: RequestRecord, expected: Part
) -> None:
    assert record.parts()[0][0] == expected
    assert {span.part for span in record.spans}.isdisjoint({Part.GATEWAY_STALLED, Part.WORKER_SILENT})


def test_what_a_stalled_gateway_did_not_read_is_no_silence_of_the_worker() -> None:
    record = answered((100.14, 103.1, b""), (100.1, 103.1, D), gap=3.0)
    assert seconds(record, Part.WORKER_SILENT) < 0.05 < seconds(record, Part.GATEWAY_STALLED)


def test_spans_tile_the_time_whatever_was_interrupted() -> None:
    dice = random.Random(5)
    for _ in range(500):
        stops = [
            (start, start + dice.choice((0.03, 0.2, 1.0)) + dice.random(), dice.choice((b"", P, D)))
            for start in (99.0 + 5 * dice.random() for _ in range(dice.randrange(12)))
        ]
        lengths = {name: dice.choice((0.001, 0.3, 2.0)) for name in ("tokenised", "there", "prefill", "back", "gap")}
        answered(*stops, **lengths)


def test_an_attempt_that_was_lost_while_the_gateway_stood_still_lost_no_time_itself() -> None:
    trail = Trail(100.0, 0.05)
    trail.routed(100.0, RUN, 1, P, D, "disaggregated")
    trail.failed(102.0, RUN, 1, P, "peer_lost")
    trail.mark(102.1, Moment.ENDED, text="failed")
    interruptions = Interruptions(lambda: 0.0)
    interruptions.expect(100.05)
    interruptions.fired(101.99)
    record = build_record(keep(trail, FACTS, interruptions))
    check_tiling(record)
    assert largest(record) == (Part.GATEWAY_STALLED, "")


def test_a_silence_that_own_stalls_cut_into_pieces_still_counts_as_a_whole() -> None:
    stalls = [(100.2 + 0.3 * place, 100.24 + 0.3 * place, b"") for place in range(6)]
    record = answered((100.0, 103.0, P), *stalls, there=3.0)
    assert largest(record) == (Part.WORKER_SILENT, "70707070")
    assert seconds(record, Part.WORKER_SILENT) > 2.6


def test_a_request_that_ends_before_the_late_timer_fires_has_the_stall_all_the_same() -> None:
    trail = Trail(100.0, 0.05)
    trail.routed(100.0, RUN, 1, None, D, "local")
    trail.arrived(100.1, RUN, D, LegTimes(0.1, 0.0, chunks=1))
    trail.slow(3.0, 103.1, 0)
    trail.mark(103.1, Moment.ENDED, text="finished")
    interruptions = Interruptions(iter((0.0, 2.5)).__next__)
    interruptions.expect(100.12)
    interruptions.silent(D, 100.1, 103.1)
    record = build_record(keep(trail, FACTS, interruptions))
    check_tiling(record)
    assert largest(record) == (Part.GATEWAY_STALLED, "")
    assert record.spans[-1].detail == BUSY


def test_a_request_keeps_the_longest_interruptions_in_order_of_time() -> None:
    interruptions = Interruptions(lambda: 0.0)
    for place in range(20):
        interruptions.expect(100.0 + place)
        interruptions.fired(100.03 + place + 0.001 * ((7 * place) % 20))
    kept = interruptions.during(100.0, 200.0, [])
    assert len(kept) == MAX_OF_REQUEST
    assert [stop.from_s for stop in kept] == sorted(stop.from_s for stop in kept)
    assert min(stop.until_s - stop.from_s for stop in kept) > 0.04


def test_a_short_lag_is_no_stall_and_a_busy_loop_is_told_from_a_stopped_process() -> None:
    used = iter((0.0, 0.0, 0.4, 0.4, 0.41)).__next__
    interruptions = Interruptions(used)
    for due_s, at_s in ((100.99, 101.0), (101.5, 102.0), (102.5, 103.0)):
        interruptions.expect(due_s)
        interruptions.fired(at_s)
    assert [stop.text for stop in interruptions.during(100.0, 104.0, [])] == [BUSY, NOT_RUN]


async def test_the_watch_of_the_loop_notes_a_callback_that_computes_for_long() -> None:
    interruptions = Interruptions()
    watching = asyncio.create_task(watch_loop_lag(lambda lag: None, interruptions))
    await asyncio.sleep(0)
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    for _ in range(200):
        await asyncio.sleep(0.005)
        if interruptions.during(0.0, 0.0, []):
            break
    watching.cancel()
    assert interruptions.during(0.0, 0.0, [])
