"""The record of a request whose client was cut off because it did not read: its time is the client's."""

from __future__ import annotations

import pytest

from baton_gateway.records.parts import Part
from baton_gateway.records.record_builder import UNREAD, build_record
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_testing.simulation.gateway import check_tiling
from baton_wire.messages.values import LegTimes

RUN, D = b"r" * 16, b"d" * 16
FACTS = TrailFacts("id", "t", "m", "cancelled", "", 0.0)


@pytest.mark.parametrize(
    ("unread_from_s", "decoding_s", "sending_s"), [(101.0, 0.9, 9.0), (None, 9.9, 0.0), (99.0, 0.0, 9.9)]
)
def test_the_time_in_which_it_did_not_read_is_that_of_sending(
    unread_from_s: float | None, decoding_s: float, sending_s: float
) -> None:
    trail = Trail(100.0, 0.05)
    trail.mark(100.0, Moment.ADMITTED)
    trail.routed(100.0, RUN, 1, None, D, "local")
    trail.arrived(100.1, RUN, D, LegTimes(0.1, 0.0, chunks=1))
    trail.unread_from_s = unread_from_s
    trail.mark(110.0, Moment.ENDED, text="cancelled")
    trail.mark(110.0, Moment.CLOSED)
    record = build_record(keep(trail, FACTS))
    check_tiling(record)
    parts = dict(record.parts())
    assert parts.get(Part.DECODING, 0) == pytest.approx(decoding_s * 1e9)
    assert parts.get(Part.SENDING, 0) == pytest.approx(sending_s * 1e9)
    assert (UNREAD in {span.detail for span in record.spans}) is (unread_from_s is not None)


def test_a_client_that_stops_reading_after_the_last_token_makes_no_decoding_longer() -> None:
    """Found: an answer that was finished at 5 s and cut off at 40 s, unread since 10 s, had decoded for 10 s."""
    trail = Trail(100.0, 0.05)
    trail.mark(100.0, Moment.ADMITTED)
    trail.routed(100.0, RUN, 1, None, D, "local")
    trail.arrived(100.1, RUN, D, LegTimes(0.1, 0.0, chunks=1))
    trail.mark(105.0, Moment.ENDED, text="finished")
    trail.unread_from_s = 110.0
    trail.mark(140.0, Moment.CLOSED)
    record = build_record(keep(trail, FACTS))
    check_tiling(record)
    spans = record.spans[-3:]
    expected = [(Part.DECODING, ""), (Part.SENDING, ""), (Part.SENDING, UNREAD)]
    assert [(span.part, span.detail) for span in spans] == expected
    assert [span.duration_ns for span in spans] == pytest.approx([4.9e9, 5e9, 30e9])
