"""Whole sequences through the decode worker's machine: who gets room when, and which messages are not acted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeState, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import HandoverKey, Reservation, SendTo, TransferConfig, Verify
from baton_kv_transfer.landing import LandingWindow
from baton_kv_transfer.layout import Extent
from baton_testing.kv_transfer.builders import WHOLE
from baton_testing.kv_transfer.decode_machine import (
    BLOCKS,
    CONFIG,
    DONE,
    FIRST,
    KEY,
    OTHER,
    P1,
    P2,
    UNIT,
    Decode,
    abandon,
    grant,
    granted,
    reject,
    scatter,
    seal,
    sums,
    wait,
)
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.kv_shape import KvGeometry, Units
from baton_wire.messages.pair_link import Grant, Heartbeat, Reject, Span
from baton_wire.messages.values import Reason


def test_units_are_scattered_as_they_arrive_and_admitted_after_the_seal() -> None:
    d = Decode()
    d.link()
    assert d.expect() == [grant()]
    assert d.land(0, 1) == [scatter(0, 1)]
    assert d.land(1, 4) == []
    assert d.scattered(0, 1) == [scatter(1, 3)]
    assert d.hear(seal()) == []
    assert d.scattered(1, 3) == [scatter(3, 4)]
    d.now = 2.0
    assert d.scattered(3, 4) == [Landed(KEY, FIRST, granted_s=0.0), DONE]
    assert d.is_empty
    assert d.machine.stats().ended == {"landed": 1}


def test_bytes_out_of_order_wait_for_the_gap() -> None:
    d = granted()
    assert d.land(2, 4) == []
    assert d.land(1, 2) == []
    assert d.land(0, 1) == [scatter(0, 2)]


def test_half_a_unit_is_not_scattered() -> None:
    d = granted()
    window = d.machine.claim(P1, 1, 0, UNIT + UNIT // 2)
    assert isinstance(window, LandingWindow)
    assert d.machine.arrived(window, 0.0) == [scatter(0, 1)]


def test_only_the_missing_part_is_asked_for() -> None:
    d = Decode()
    d.link()
    assert d.expect(cached=12) == [grant(start=12)]
    assert d.land(0, 1) == [Scatter(KEY, Units(BLOCKS, 4, 3, 4, WHOLE), Extent(0, UNIT))]
    d.hear(seal(checksums=sums(3, 4)))
    assert d.scattered(3, 4)[0] == Landed(KEY, FIRST, 0.0)


def test_an_empty_transfer_is_a_completed_transfer() -> None:
    d = Decode(landing_bytes=0)
    d.link()
    assert d.expect(cached=12, tokens=12) == [grant(start=12, end=12)]
    assert d.hear(seal(checksums=b"")) == [Landed(KEY, FIRST, 0.0), DONE]
    assert d.is_empty


def test_a_smaller_block_there_makes_smaller_units() -> None:
    d = Decode()
    d.link(block_tokens=2)
    (sent,) = d.expect()
    assert isinstance(sent, SendTo)
    assert isinstance(sent.message, Grant)
    assert sent.message.unit_tokens == 2
    assert sent.message.spans == (Span(offset=0, length=7 * UNIT // 2),)


def test_a_block_size_that_does_not_divide_is_unfit() -> None:
    with pytest.raises(UnfitPairError):
        Decode().link(block_tokens=6)


def test_a_reservation_waits_for_the_link_only_so_long() -> None:
    d = Decode()
    assert d.expect() == []
    assert d.states == {DecodeState.LINKING}
    assert d.tick(9.9) == []
    assert d.link() == [grant()]
    late = Decode()
    late.expect()
    assert late.tick(10.0) == [HandoverFailed(KEY, Reason.PEER_LOST, "the prefill worker did not link")]
    assert late.is_empty


def test_room_is_given_in_order_and_those_who_wait_are_told() -> None:
    d = Decode(landing_bytes=6 * UNIT)
    d.link()
    third = HandoverKey(b"t" * 16, 1)
    assert d.expect() == [grant()]
    assert d.expect(OTHER) == [wait(0, OTHER)]
    assert d.expect(third, tokens=4) == [wait(1, third)]
    assert d.cancel() == [
        reject(Reason.CANCELLED),
        HandoverFailed(KEY, Reason.CANCELLED, ""),
        grant(2, key=OTHER),
        grant(3, key=third, offset=4 * UNIT, end=4),
    ]


def test_a_cancelled_waiter_lets_the_next_one_in() -> None:
    d = Decode(landing_bytes=6 * UNIT)
    d.link()
    third = HandoverKey(b"t" * 16, 1)
    d.expect()
    d.expect(OTHER)
    d.expect(third, tokens=4)
    actions = d.cancel(OTHER)
    assert actions[-1] == grant(2, key=third, offset=4 * UNIT, end=4)


def test_a_queued_request_is_told_to_wait_and_granted_later() -> None:
    d = Decode()
    d.link()
    assert d.queue() == [wait(3)]
    assert d.states == {DecodeState.QUEUED}
    assert d.expect() == [grant()]


@pytest.mark.parametrize("queued", [True, False])
def test_a_refused_request_is_rejected_and_nothing_is_told_to_the_worker(queued: bool) -> None:
    d = Decode()
    d.link()
    if queued:
        d.queue()
    assert d.refuse() == [reject(Reason.NO_CAPACITY, "queue full")]
    assert d.is_empty
    assert d.ends == []


def test_a_cancelled_or_late_queued_request_is_rejected() -> None:
    d = Decode()
    d.link()
    d.queue()
    assert d.cancel() == [reject(Reason.CANCELLED)]
    d.queue(OTHER)
    (answer,) = d.tick(100.0)
    assert isinstance(answer, SendTo)
    assert isinstance(answer.message, Reject)
    assert answer.message.reason is Reason.DEADLINE
    assert d.is_empty


@pytest.mark.parametrize(
    ("landing_bytes", "config", "detail"),
    [
        (3 * UNIT, CONFIG, f"{4 * UNIT} bytes, the landing region has {3 * UNIT}"),
    ],
)
def test_what_can_never_fit_is_refused(landing_bytes: int, config: TransferConfig, detail: str) -> None:
    d = Decode(config, landing_bytes)
    d.link()
    assert d.expect() == [reject(Reason.TOO_LONG, detail), HandoverFailed(KEY, Reason.TOO_LONG, detail)]


@pytest.mark.parametrize("verify", list(Verify))
def test_more_pieces_than_a_seal_can_name_are_granted(verify: Verify) -> None:
    thin = KvGeometry(layers=1_000, kv_heads=1, head_dim=1, element_bytes=1, block_tokens=1)
    machine = DecodeHandovers(thin, 1 << 30, replace(CONFIG, verify=verify))
    machine.link_up(P1, 1, 0.0)
    (sent,) = machine.expected(KEY, P1, Reservation(200, 0, tuple(range(200)), (0,), 10.0), 0.0)
    assert isinstance(sent, SendTo)
    assert isinstance(sent.message, Grant)


# Messages that must not be acted on -----------------------------------------------------------------------------------


def test_a_seal_of_another_transfer_is_refused() -> None:
    d = granted()
    d.land(0, 4)
    assert d.hear(seal(transfer=2)) == [reject(Reason.BAD_REQUEST, "seal of another transfer")]
    assert d.states == {DecodeState.GRANTED}
    assert d.refused_count("wrong_transfer") == 1


def test_another_workers_seal_or_abandon_is_not_acted_on() -> None:
    d = granted()
    d.link(P2)
    d.land(0, 4)
    refusal = reject(Reason.UNKNOWN_REQUEST, "no such hand-over from this epoch", P2)
    assert d.hear(seal(), P2) == [refusal]
    assert d.hear(abandon(), P2) == []
    assert d.states == {DecodeState.GRANTED}
    assert d.refused_count("foreign_epoch") == 2
    assert d.unlink(P2) == []


def test_a_seal_of_the_unknown_is_answered() -> None:
    d = Decode()
    d.link()
    assert d.hear(seal()) == [reject(Reason.UNKNOWN_REQUEST, "no such hand-over from this epoch")]
    assert d.refused_count("unknown_seal") == 1


def test_a_seal_before_the_grant_is_not_believed() -> None:
    d = Decode(landing_bytes=4 * UNIT)
    d.link()
    d.expect(OTHER)
    d.expect()
    assert d.hear(seal()) == []
    assert d.refused_count("seal_before_grant") == 1
    assert d.states == {DecodeState.GRANTED, DecodeState.WAITING}


def test_the_same_seal_twice_changes_nothing() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal())
    assert d.hear(seal()) == []
    assert d.hear(abandon()) == []
    d.scattered(0, 2)
    d.scattered(2, 4)
    assert d.hear(seal()) == []
    assert [type(end) for end in d.ends] == [Landed]


def test_an_abandon_before_the_reservation_ends_it_when_it_comes() -> None:
    d = Decode()
    d.link()
    d.hear(abandon())
    assert d.expect() == [HandoverFailed(KEY, Reason.FINISHED, "")]
    d = Decode()
    d.link()
    d.queue()
    d.hear(abandon())
    assert d.expect() == [HandoverFailed(KEY, Reason.FINISHED, "")]


def test_an_early_abandon_dies_with_its_link_and_with_time() -> None:
    d = Decode()
    d.link()
    d.hear(abandon())
    d.unlink()
    d.link()
    assert d.expect() == [grant()]
    d = Decode()
    d.link()
    d.hear(abandon())
    d.tick(30.0)
    assert d.expect() == [grant()]


def test_an_abandon_while_waiting_for_room_leaves_the_line() -> None:
    d = Decode(landing_bytes=4 * UNIT)
    d.link()
    d.expect(OTHER)
    d.expect()
    assert d.hear(abandon()) == [HandoverFailed(KEY, Reason.FINISHED, "")]
    assert d.states == {DecodeState.GRANTED}


def test_expecting_twice_changes_nothing_and_an_ended_attempt_does_not_come_back() -> None:
    d = granted()
    assert d.expect() == []
    assert d.queue() == []
    d.cancel()
    assert d.expect() == [HandoverFailed(KEY, Reason.BAD_REQUEST, "this attempt already ended here")]


def test_messages_of_the_wrong_side_are_a_breach() -> None:
    d = Decode()
    d.link()
    for message in (grant().message, wait(0).message, DONE.message, reject(Reason.CANCELLED).message):
        with pytest.raises(BadMessageError, match="not a prefill worker's message"):
            d.hear(message)
    assert d.hear(Heartbeat()) == []


def test_reports_of_unknown_scatters_are_counted() -> None:
    d = granted()
    assert d.scattered(0, 1) == []
    assert d.machine.scatter_failed(KEY, 0, "", 0.0) == []
    assert d.refused_count("unknown_scatter") == 2


def test_a_message_that_does_not_fit_ends_its_hand_over_alone() -> None:
    d = granted()
    assert d.machine.spoilt(P2, KEY.request, KEY.attempt, "Seal: no", d.now) == []
    rejected, *failed = d.machine.spoilt(P1, KEY.request, KEY.attempt, "Seal: no", d.now)
    assert rejected == reject(Reason.INTERNAL, "Seal: no")
    assert failed == [HandoverFailed(KEY, Reason.INTERNAL, "Seal: no")]
    assert d.machine.spoilt(P1, OTHER.request, OTHER.attempt, "Seal: no", d.now) == []
    assert d.refused_count("spoilt") == 3
