"""The landing region: permissions to write, and when bytes are granted again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from baton_kv_transfer.coverage import MAX_INTERVALS, Coverage
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow, SpanState
from baton_kv_transfer.layout import Extent
from baton_wire.errors import LandingFullError
from baton_wire.messages.pair_link import MAX_SPANS

P1, P2 = b"1" * 16, b"2" * 16


def claimed(region: LandingRegion, transfer: int, offset: int, length: int, peer: bytes = P1) -> LandingWindow:
    window = region.claim(peer, transfer, offset, length)
    assert isinstance(window, LandingWindow)
    return window


def test_spans_are_given_first_fit_and_aligned() -> None:
    region = LandingRegion(4_096)
    assert [region.grant(n, P1, 300, 100)[0].offset for n in (1, 2, 3)] == [0, 512, 1_024]
    region.release(2)
    assert region.grant(4, P1, 600, 100)[0].offset == 1_536
    assert region.grant(5, P1, 500, 100)[0].offset == 512
    assert region.stats().by_state[SpanState.GRANTED] == 512 + 512 + 768 + 512


def test_a_stream_is_cut_into_whole_units_when_no_hole_is_long_enough() -> None:
    region = LandingRegion(2_048)
    for transfer in range(8):
        region.grant(transfer + 1, P1, 256, 256)
    for transfer in (1, 3, 4, 6):
        region.release(transfer)
    spans = region.grant(9, P1, 900, 100)
    assert [(span.offset, span.length) for span in spans] == [(512, 500), (0, 200), (1_280, 200)]
    with pytest.raises(LandingFullError):
        region.grant(10, P1, 256, 256)


def test_room_comes_back_whole() -> None:
    region = LandingRegion(1_024)
    region.grant(1, P1, 256, 256)
    region.grant(2, P1, 256, 256)
    with pytest.raises(LandingFullError, match="no room for 768 bytes"):
        region.grant(3, P1, 768, 768)
    region.release(1)
    region.release(1)
    region.release(2)
    assert region.grant(3, P1, 1_024, 256)[0].length == 1_024


def test_a_transfer_is_granted_once() -> None:
    region = LandingRegion(1_024)
    region.grant(1, P1, 256, 256)
    with pytest.raises(ValueError, match="transfer: 1 already exists"):
        region.grant(1, P1, 256, 256)
    region.release(1, writes_may_follow=True)
    with pytest.raises(ValueError, match="already exists"):
        region.grant(1, P1, 256, 256)


def test_a_stream_of_broken_units_is_refused() -> None:
    with pytest.raises(ValueError, match="length: 300 is not a multiple"):
        LandingRegion(1_024).grant(1, P1, 300, 256)


def test_an_empty_transfer_needs_no_room() -> None:
    region = LandingRegion(0)
    assert region.grant(1, P1, 0, 256) == ()
    assert region.first_gap(1) is None
    assert region.claim(P1, 1, 0, 1) is ClaimRefusal.OUT_OF_SPAN


@pytest.mark.parametrize(
    ("peer", "transfer", "offset", "length", "refusal"),
    [
        (P1, 7, 0, 10, ClaimRefusal.UNKNOWN_TRANSFER),
        (P2, 1, 0, 10, ClaimRefusal.FOREIGN_PEER),
        (P1, 1, 0, 513, ClaimRefusal.OUT_OF_SPAN),
        (P1, 1, 511, 2, ClaimRefusal.OUT_OF_SPAN),
        (P1, 1, 600, 10, ClaimRefusal.OUT_OF_SPAN),
        (P1, 1, 0, 0, ClaimRefusal.OUT_OF_SPAN),
        (P1, 1, 100, 10, ClaimRefusal.OVERLAP),
        (P1, 1, 91, 10, ClaimRefusal.OVERLAP),
        (P1, 3, 1_024, 10, ClaimRefusal.SEALED),
    ],
)
def test_a_write_that_was_not_granted_is_refused(
    peer: bytes, transfer: int, offset: int, length: int, refusal: ClaimRefusal
) -> None:
    region = LandingRegion(4_096)
    for granted in (1, 2, 3):
        region.grant(granted, P1, 512, 256)
    claimed(region, 1, 100, 100)
    region.seal(3)
    assert region.claim(peer, transfer, offset, length) is refusal
    assert region.refused_writes == 1


def test_bytes_count_when_they_stand_not_when_they_are_claimed() -> None:
    region = LandingRegion(4_096)
    region.grant(1, P1, 512, 256)
    second = claimed(region, 1, 256, 256)
    region.arrived(second)
    assert (region.arrived_to(1, 0), region.first_gap(1)) == (0, (0, 256))
    assert region.arrived_to(1, 256) == 512
    first = claimed(region, 1, 0, 256)
    assert region.first_gap(1) is not None
    region.arrived(first)
    assert (region.arrived_to(1, 0), region.first_gap(1)) == (512, None)


@pytest.mark.parametrize("end", ["release", "stop_writes", "seal", "quarantine"])
def test_open_windows_close_with_their_transfer(end: str) -> None:
    region = LandingRegion(4_096)
    region.grant(1, P1, 512, 256)
    window = claimed(region, 1, 0, 100)
    getattr(region, end)(1)
    assert not window.is_open
    region.arrived(window)
    if end != "release":
        assert region.arrived_to(1, 0) == 0


def test_a_revoked_transfer_is_swallowed_until_its_writer_is_done() -> None:
    region = LandingRegion(4_096)
    region.grant(1, P1, 512, 256)
    region.release(1, writes_may_follow=True)
    assert not claimed(region, 1, 0, 100).is_open
    assert region.claim(P2, 1, 0, 100) is ClaimRefusal.UNKNOWN_TRANSFER
    assert region.discarded_writes == 1
    region.forget(1)
    assert region.claim(P1, 1, 0, 100) is ClaimRefusal.UNKNOWN_TRANSFER


def test_the_share_in_quarantine_is_reported_and_released_on_proof() -> None:
    region = LandingRegion(1_024, quarantine_share=0.5)
    for transfer in (1, 2, 3):
        region.grant(transfer, P1, 256, 256)
    region.quarantine(1)
    region.quarantine(2)
    assert (region.quarantined_bytes, region.quarantine_is_full) == (512, False)
    region.quarantine(3)
    assert region.stats().quarantine_is_full
    assert region.holder_of(Extent(0, 256)) == P1
    region.release(3)
    assert not region.quarantine_is_full
    assert region.holder_of(Extent(512, 10)) is None


class Spans(RuleBasedStateMachine):
    """Any order of grants, claims and endings: no byte has two owners, none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.region = LandingRegion(8_192)
        self.held: dict[int, set[int]] = {}
        self.lengths: dict[int, int] = {}
        self.next = 1

    transfers: Bundle[int] = Bundle("transfers")

    @rule(target=transfers, units=st.integers(0, 40), unit=st.sampled_from([1, 100, 256, 700]))
    def grant(self, units: int, unit: int) -> int | MultipleResults[int]:
        number, self.next = self.next, self.next + 1
        try:
            spans = self.region.grant(number, P1, units * unit, unit)
        except LandingFullError:
            return multiple()
        assert len(spans) <= MAX_SPANS
        assert all(span.length % unit == 0 for span in spans)
        assert all(span.offset % 256 == 0 for span in spans)
        assert sum(span.length for span in spans) == units * unit
        self.held[number] = {b for span in spans for b in range(span.offset, span.offset + span.length)}
        self.lengths[number] = units * unit
        return number

    @rule(transfer=transfers, offset=st.integers(0, 8_192), length=st.integers(1, 300))
    def write(self, transfer: int, offset: int, length: int) -> None:
        if transfer not in self.held:
            return
        window = self.region.claim(P1, transfer, offset, length)
        if isinstance(window, LandingWindow) and window.is_open:
            assert set(range(offset, offset + length)) <= self.held[transfer]
            self.region.arrived(window)

    @rule(transfer=transfers)
    def quarantine(self, transfer: int) -> None:
        if transfer in self.held:
            self.region.quarantine(transfer)

    @rule(transfer=consumes(transfers), follow=st.booleans())
    def release(self, transfer: int, follow: bool) -> None:
        self.region.release(transfer, writes_may_follow=follow)
        self.held.pop(transfer, None)

    @invariant()
    def no_byte_has_two_owners_and_none_is_lost(self) -> None:
        owned = [byte for held in self.held.values() for byte in held]
        assert len(owned) == len(set(owned))
        stats = self.region.stats()
        assert stats.free_bytes + sum(stats.by_state.values()) == stats.total_bytes
        assert stats.free_bytes <= stats.total_bytes - len(owned)
        if not self.held:
            assert stats.largest_free_bytes == stats.total_bytes


TestSpans = Spans.TestCase
TestSpans.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(-2, 60), st.integers(-2, 60)), max_size=40))
def test_coverage_is_a_set_of_bytes_that_takes_no_byte_twice(writes: list[tuple[int, int]]) -> None:
    coverage, model = Coverage(50), set[int]()
    for start, end in writes:
        new = set(range(start, end))
        fits = bool(new) and not new & model and min(new) >= 0 and max(new) < 50
        assert coverage.add(start, end) == fits
        model |= new if fits else set()
        assert coverage.total == len(model)
        assert {b for low, high in coverage.intervals() for b in range(low, high)} == model
        gaps = [b for b in range(50) if b not in model]
        for byte in range(50):
            assert coverage.covered_to(byte) == next((gap for gap in gaps if gap >= byte), 50)
        gap = coverage.first_gap()
        assert (gap is None) == coverage.is_complete == (not gaps)
        if gap is not None:
            assert gap[0] == gaps[0]
            assert all(b not in model for b in range(*gap))
            assert gap[1] == 50 or gap[1] in model


def test_a_writer_that_leaves_too_many_gaps_is_refused() -> None:
    coverage = Coverage(1 << 20)
    assert all(coverage.add(2 * n, 2 * n + 1) for n in range(MAX_INTERVALS))
    assert not coverage.add(2 * MAX_INTERVALS, 2 * MAX_INTERVALS + 1)
    assert coverage.add(1, 2)
