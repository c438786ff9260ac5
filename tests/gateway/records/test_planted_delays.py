"""A delay that is planted into one stage of a request is the largest part of its record, whichever stage it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from baton_gateway.records.parts import Part
from baton_gateway.records.record_builder import build_record
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_testing.simulation.gateway import check_tiling
from baton_wire.messages.values import LegTimes

RUN, P, D, OTHER = b"r" * 16, b"p" * 16, b"d" * 16, b"e" * 16
FACTS = TrailFacts("id", "t", "m", "finished", "", 0.0)
SHORT_S, LONG_S = 0.01, 3.0


@dataclass(frozen=True)
class Stages:
    """How long each stage of a request takes, in seconds."""

    body: float = SHORT_S
    admission: float = SHORT_S
    template: float = SHORT_S
    tokenizer: float = SHORT_S
    grammar: float = SHORT_S
    echo: float = SHORT_S
    parked: float = 0.0
    held: float = SHORT_S
    unrouted: float = 0.0
    lost: float = 0.0
    backoff: float = 0.0
    link: float = SHORT_S
    prefill_queue: float = SHORT_S
    chunks: float = SHORT_S
    drawing: float = SHORT_S
    reserved: float = SHORT_S
    kv_link: float = SHORT_S
    batch: float = SHORT_S
    decode_link: float = SHORT_S
    gap: float = SHORT_S
    preempted: float = 0.0
    migration: float = 0.0
    reading: float = SHORT_S
    is_local: bool = False


class Timeline:
    """Drives a trail through stages on a clock of its own."""

    def __init__(self, stages: Stages) -> None:
        self.now = 100.0
        self.stages = stages
        self.trail = Trail(self.now, 0.05)

    def after(self, seconds: float, moment: Moment, run: bytes = b"", text: str = "") -> None:
        self.now += seconds
        self.trail.mark(self.now, moment, run, text)

    def record(self) -> RequestRecord:
        stages = self.stages
        self.after(stages.body, Moment.OFFERED)
        self.after(stages.admission, Moment.ADMITTED)
        if stages.parked:
            self.after(0.0, Moment.PARKED)
            self.after(stages.parked, Moment.UNPARKED)
        self.after(stages.template, Moment.RENDERED)
        self.after(stages.tokenizer, Moment.TOKENISED)
        self.after(stages.grammar, Moment.COMPILED)
        self.after(stages.echo, Moment.PREPARED)
        self.after(0.0, Moment.HELD, RUN)
        self.now += stages.held
        if stages.unrouted:
            self.after(0.0, Moment.UNROUTED, RUN)
            self.now += stages.unrouted
        if stages.lost or stages.backoff:
            self.trail.routed(self.now, RUN, 1, P, OTHER, "disaggregated")
            self.now += stages.lost
            self.trail.failed(self.now, RUN, 1, OTHER, "peer_lost")
            self.now += stages.backoff
        self.run_legs(2)
        self.decode()
        if stages.migration:
            self.now += stages.migration
            self.trail.failed(self.now, RUN, 2, D, "peer_lost")
            self.run_legs(3)
            gap = stages.migration + self.now - self.sent
            self.trail.slow(gap, self.now, 0)
            self.decode()
        self.after(0.0, Moment.ENDED, text="finished")
        self.after(stages.reading, Moment.CLOSED)
        return build_record(keep(self.trail, FACTS))

    def run_legs(self, attempt: int) -> None:
        stages, self.sent = self.stages, self.now
        route = "local" if stages.is_local else "disaggregated"
        self.trail.routed(self.now, RUN, attempt, None if stages.is_local else P, D, route)
        began = stages.prefill_queue
        computed = began + stages.chunks
        sent = computed + stages.drawing
        self.now += 2 * stages.link + sent
        if stages.is_local:
            self.trail.arrived(self.now, RUN, D, LegTimes(sent, began, chunks=3))
            return
        self.trail.arrived(self.now, RUN, P, LegTimes(sent, began, computed, 3))
        reserved = self.now - self.sent + stages.reserved
        landed = reserved + stages.kv_link
        sent = landed + stages.batch
        self.now = self.sent + sent + 2 * stages.decode_link
        self.trail.arrived(self.now, RUN, D, LegTimes(sent, reserved_s=reserved, landed_s=landed))

    def decode(self) -> None:
        stages = self.stages
        for gap in (SHORT_S, stages.gap, SHORT_S):
            self.now += gap
            if gap > self.trail.gap_target_s:
                self.trail.slow(gap, self.now, 0)
        if stages.preempted:
            self.now += stages.preempted
            self.trail.arrived(self.now, RUN, D, LegTimes(9.0, preemptions=1, preempted_s=stages.preempted))
            self.trail.slow(stages.preempted, self.now, 0)


PLANTED: dict[str, tuple[Callable[[Stages], Stages], Part]] = {
    "the client sends its body slowly": (lambda s: replace(s, body=LONG_S), Part.RECEIVING),
    "the tenant's quota": (lambda s: replace(s, admission=LONG_S), Part.QUEUED),
    "a slow template": (lambda s: replace(s, template=LONG_S), Part.RENDERING),
    "a cold tokenizer": (lambda s: replace(s, tokenizer=LONG_S), Part.TOKENISING),
    "a grammar is compiled": (lambda s: replace(s, grammar=LONG_S), Part.COMPILING),
    "a long echo is prepared": (lambda s: replace(s, echo=LONG_S), Part.PREPARING),
    "a slow disk for the weights of the first worker": (lambda s: replace(s, parked=LONG_S), Part.PARKED),
    "a pool that wakes up": (lambda s: replace(s, unrouted=LONG_S), Part.PARKED),
    "a held prompt": (lambda s: replace(s, held=LONG_S), Part.HELD),
    "a killed worker": (lambda s: replace(s, lost=LONG_S), Part.LOST_ATTEMPT),
    "a full pool, tried again": (lambda s: replace(s, lost=SHORT_S, backoff=LONG_S), Part.BACKING_OFF),
    "a slow link to the workers": (lambda s: replace(s, link=LONG_S), Part.LINKS),
    "a busy prefill queue": (lambda s: replace(s, prefill_queue=LONG_S), Part.PREFILL_QUEUE),
    "a long prompt": (lambda s: replace(s, chunks=LONG_S), Part.PREFILL),
    "a long prompt at a decode worker": (lambda s: replace(s, chunks=LONG_S, is_local=True), Part.PREFILL),
    "a slow first draw": (lambda s: replace(s, drawing=LONG_S), Part.FIRST_TOKEN),
    "no free blocks": (lambda s: replace(s, reserved=LONG_S), Part.RESERVATION),
    "a slow link for KV": (lambda s: replace(s, kv_link=LONG_S), Part.TRANSFER),
    "a long step before the batch": (lambda s: replace(s, batch=LONG_S), Part.DECODE_QUEUE),
    "a slow link back": (lambda s: replace(s, decode_link=LONG_S), Part.LINKS),
    "a long chunk next to the answer": (lambda s: replace(s, gap=LONG_S), Part.SLOW_GAPS),
    "a preemption": (lambda s: replace(s, preempted=LONG_S), Part.PREEMPTED),
    "a worker that is killed while it decodes": (lambda s: replace(s, migration=LONG_S), Part.LOST_ATTEMPT),
    "the client reads slowly": (lambda s: replace(s, reading=LONG_S), Part.SENDING),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_delay_is_the_largest_part(name: str) -> None:
    plant, part = PLANTED[name]
    record = Timeline(plant(Stages())).record()
    check_tiling(record)
    (largest, took), *_ = record.parts()
    assert largest == part, record.spans
    assert took >= 0.9 * LONG_S * 1e9


def test_nothing_is_missing_where_all_legs_report() -> None:
    assert Timeline(Stages()).record().missing == []


def test_a_leg_that_reports_nothing_is_named_as_missing() -> None:
    timeline = Timeline(Stages())
    timeline.trail.routed(100.0, RUN, 1, None, D, "local")
    timeline.trail.arrived(101.0, RUN, D, None)
    timeline.after(2.0, Moment.ENDED)
    record = build_record(keep(timeline.trail, FACTS))
    check_tiling(record)
    assert record.missing == ["times of the decode worker 64646464"]


def test_marks_beyond_the_bound_are_counted_and_the_spans_still_tile() -> None:
    timeline = Timeline(Stages())
    for _ in range(1_000):
        timeline.after(0.01, Moment.HELD, RUN)
    timeline.after(1.0, Moment.ENDED, text="finished")
    record = build_record(keep(timeline.trail, FACTS))
    check_tiling(record)
    assert record.missing == ["744 marks that did not fit"]


def late_prefill(decoding_s: float) -> RequestRecord:
    """Return the record of a request whose way to the prefill worker takes `LONG_S`, and the way back too: the decode
    worker's tokens overtake those of the prefill worker."""
    timeline = Timeline(Stages())
    timeline.trail.routed(100.0, RUN, 1, P, D, "disaggregated")
    landed = LONG_S + 0.25
    timeline.trail.arrived(100.0 + landed + 0.02, RUN, D, LegTimes(landed + 0.01, reserved_s=0.01, landed_s=landed))
    if decoding_s > LONG_S:
        timeline.trail.arrived(100.0 + 2 * LONG_S + 0.2, RUN, P, LegTimes(0.2, 0.01, 0.19, 2))
    timeline.now = 100.0 + landed + decoding_s
    timeline.after(0.0, Moment.ENDED, text="finished")
    record = build_record(keep(timeline.trail, FACTS))
    check_tiling(record)
    return record


def test_a_slow_way_to_the_prefill_worker_is_no_slow_transfer_and_no_part_of_decoding() -> None:
    record = late_prefill(2 * LONG_S)
    parts = dict(record.parts())
    assert round(parts[Part.DECODING] / 1e9) == round(2 * LONG_S)
    assert round(parts[Part.LINKS] / 1e9, 1) == LONG_S
    assert parts[Part.PREFILL] == 180_000_000
    assert parts[Part.TRANSFER] < 100_000_000
    assert record.attempts[0].chunks == 2
    assert record.missing == []


def test_an_answer_that_is_over_before_the_prefill_worker_reports_says_what_is_missing() -> None:
    record = late_prefill(0.1)
    assert record.parts()[0][0] == Part.TRANSFER
    assert record.missing == ["times of the prefill worker 70707070"]


def test_a_wait_for_a_slot_after_the_first_token_landed_is_no_slow_step() -> None:
    trail = Trail(100.0, 0.05)
    trail.routed(100.0, RUN, 1, P, D, "disaggregated")
    trail.arrived(100.2, RUN, P, LegTimes(0.2, 0.0, 0.2))
    trail.arrived(100.3, RUN, D, None, has_more=True)
    trail.arrived(100.3 + LONG_S, RUN, D, LegTimes(LONG_S + 0.3, reserved_s=0.0, landed_s=0.3))
    trail.slow(LONG_S, 100.3 + LONG_S, 0)
    trail.mark(100.4 + LONG_S, Moment.ENDED, text="finished")
    record = build_record(keep(trail, FACTS))
    check_tiling(record)
    assert record.parts()[0] == (Part.DECODE_QUEUE, round(LONG_S * 1e9))
    assert record.missing == []


def test_a_decode_worker_that_reports_nothing_is_missing_from_its_second_token_on() -> None:
    trail = Trail(100.0, 0.05)
    trail.routed(100.0, RUN, 1, P, D, "disaggregated")
    trail.arrived(100.2, RUN, P, LegTimes(0.2, 0.0, 0.2))
    trail.arrived(100.3, RUN, D, None, has_more=True)
    trail.arrived(100.4, RUN, D, None)
    trail.mark(100.5, Moment.ENDED, text="finished")
    assert build_record(keep(trail, FACTS)).missing == ["times of the decode worker 64646464"]
