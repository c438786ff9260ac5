"""Whole sequences through the decode worker's machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baton_kv_transfer.decode_records import DecodeAction, DecodeState, Failed, Landed, Scatter
from baton_kv_transfer.errors import BadMessageError, UnfitPairError
from baton_kv_transfer.handover import HandoverKey, Send, TransferConfig, Verify
from baton_kv_transfer.handover_decode import DecodeHandovers
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow, SpanState
from baton_kv_transfer.layout import Extent, KvGeometry, StreamLayout
from baton_kv_transfer.wire.pair_link import (
    Abandon,
    Done,
    FirstToken,
    Grant,
    Heartbeat,
    PairMessage,
    Reject,
    Seal,
    Span,
    Wait,
)
from baton_kv_transfer.wire.values import Reason
from baton_testing.kv_transfer import GEOMETRY, first_tokens

UNIT = GEOMETRY.block_bytes
CONFIG = TransferConfig(max_put_bytes=2 * UNIT, link_wait_s=10.0, early_s=30.0)
P1, P2 = b"1" * 16, b"2" * 16
KEY, OTHER = HandoverKey(b"r" * 16, 1), HandoverKey(b"s" * 16, 1)
TOKENS, BLOCKS = 14, (9, 4, 5, 2)
FIRST = first_tokens(0, 1)


def sums(first_unit: int = 0, end_unit: int = 4) -> bytes:
    pieces = StreamLayout(GEOMETRY, 4, 0, TOKENS).pieces_per_unit
    return b"".join((unit * 100 + piece).to_bytes(8) for unit in range(first_unit, end_unit) for piece in range(pieces))


class Decode:
    """The machine, its clock, and everything it asked for."""

    def __init__(
        self, config: TransferConfig = CONFIG, landing_bytes: int = 16 * UNIT, one_sided: bool = False
    ) -> None:
        self.machine = DecodeHandovers(GEOMETRY, landing_bytes, config, one_sided=one_sided)
        self.now = 0.0
        self.all: list[DecodeAction] = []

    def _took(self, actions: list[DecodeAction]) -> list[DecodeAction]:
        self.all += actions
        return actions

    def link(self, peer: bytes = P1, block_tokens: int = 4) -> list[DecodeAction]:
        return self._took(self.machine.link_up(peer, block_tokens, self.now))

    def unlink(self, peer: bytes = P1) -> list[DecodeAction]:
        return self._took(self.machine.link_down(peer, "silent", self.now))

    def queue(self, key: HandoverKey = KEY) -> list[DecodeAction]:
        return self._took(self.machine.queued(key, P1, 3, 100.0, self.now))

    def expect(
        self, key: HandoverKey = KEY, cached: int = 0, tokens: int = TOKENS, deadline_s: float = 100.0
    ) -> list[DecodeAction]:
        choices = tuple(first.choice for first in FIRST)
        blocks = BLOCKS[: -(-tokens // 4)]
        return self._took(self.machine.expected(key, P1, tokens, cached, blocks, choices, deadline_s, self.now))

    def refuse(self, key: HandoverKey = KEY) -> list[DecodeAction]:
        return self._took(self.machine.refused(key, P1, Reason.NO_CAPACITY, "queue full", self.now))

    def cancel(self, key: HandoverKey = KEY, reason: Reason = Reason.CANCELLED) -> list[DecodeAction]:
        return self._took(self.machine.cancelled(key, reason, "", self.now))

    def hear(self, message: PairMessage, peer: bytes = P1) -> list[DecodeAction]:
        return self._took(self.machine.message(peer, message, self.now))

    def land(self, first_unit: int, end_unit: int, transfer: int = 1, base: int = 0) -> list[DecodeAction]:
        offset, length = base + first_unit * UNIT, (end_unit - first_unit) * UNIT
        window = self.machine.claim(P1, transfer, offset, length)
        assert isinstance(window, LandingWindow)
        assert window.is_open
        return self._took(self.machine.arrived(window, self.now))

    def scattered(self, first_unit: int, end_unit: int, checksums: bytes | None = None) -> list[DecodeAction]:
        read = sums(first_unit, end_unit) if checksums is None else checksums
        return self._took(self.machine.scattered(KEY, first_unit, read, self.now))

    def tick(self, now: float) -> list[DecodeAction]:
        self.now = now
        return self._took(self.machine.tick(now))

    @property
    def states(self) -> set[DecodeState]:
        return {state for state, count in self.machine.stats().by_state.items() if count}

    def refused_count(self, cause: str) -> int:
        return self.machine.stats().refused.get(cause, 0)

    @property
    def is_empty(self) -> bool:
        stats = self.machine.stats()
        return not self.states and stats.landing.free_bytes == stats.landing.total_bytes and stats.lingering == 0

    @property
    def ends(self) -> list[DecodeAction]:
        return [action for action in self.all if isinstance(action, Landed | Failed)]


def grant(transfer: int = 1, start: int = 0, offset: int = 0, key: HandoverKey = KEY, end: int = TOKENS) -> Send:
    units = -(-end // 4) - start // 4
    spans = (Span(offset=offset, length=units * UNIT),) if units else ()
    message = Grant(
        request=key.request,
        attempt=key.attempt,
        transfer=transfer,
        start_tokens=start,
        end_tokens=end,
        unit_tokens=4,
        spans=spans,
    )
    return Send(P1, message)


def seal(transfer: int = 1, checksums: bytes | None = None, tokens: tuple[FirstToken, ...] = FIRST) -> Seal:
    read = sums() if checksums is None else checksums
    return Seal(request=KEY.request, attempt=KEY.attempt, transfer=transfer, checksums=read, first_tokens=tokens)


def abandon(reason: Reason = Reason.FINISHED) -> Abandon:
    return Abandon(request=KEY.request, attempt=KEY.attempt, reason=reason)


def reject(reason: Reason, detail: str = "", peer: bytes = P1) -> Send:
    return Send(peer, Reject(request=KEY.request, attempt=KEY.attempt, reason=reason, detail=detail))


def wait(position: int, key: HandoverKey = KEY) -> Send:
    return Send(P1, Wait(request=key.request, attempt=key.attempt, position=position))


DONE = Send(P1, Done(request=KEY.request, attempt=KEY.attempt))


def granted(**options: object) -> Decode:
    d = Decode(**options)  # type: ignore[arg-type]
    d.link()
    d.expect()
    return d


def scatter(first: int, end: int, base: int = 0) -> Scatter:
    return Scatter(KEY, BLOCKS, 4, first, end, Extent(base + first * UNIT, (end - first) * UNIT))


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
    assert d.land(0, 1) == [Scatter(KEY, BLOCKS, 4, 3, 4, Extent(0, UNIT))]
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
    assert isinstance(sent, Send)
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
    assert late.tick(10.0) == [Failed(KEY, Reason.PEER_LOST, "the prefill worker did not link")]
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
        Failed(KEY, Reason.CANCELLED, ""),
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
    (told,) = d.tick(100.0)
    assert isinstance(told, Send)
    assert isinstance(told.message, Reject)
    assert told.message.reason is Reason.DEADLINE
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
    assert d.expect() == [reject(Reason.TOO_LONG, detail), Failed(KEY, Reason.TOO_LONG, detail)]


def test_more_pieces_than_a_seal_can_name_are_refused() -> None:
    thin = KvGeometry(layers=1_000, kv_heads=1, head_dim=1, element_bytes=1, block_tokens=1)
    machine = DecodeHandovers(thin, 1 << 30, CONFIG)
    machine.link_up(P1, 1, 0.0)
    actions = machine.expected(KEY, P1, 200, 0, tuple(range(200)), (0,), 10.0, 0.0)
    assert [type(action) for action in actions] == [Send, Failed]
    machine = DecodeHandovers(thin, 1 << 30, replace(CONFIG, verify=Verify.STAMPS))
    machine.link_up(P1, 1, 0.0)
    (sent,) = machine.expected(KEY, P1, 200, 0, tuple(range(200)), (0,), 10.0, 0.0)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Grant)


# Endings --------------------------------------------------------------------------------------------------------------


BREAKS: dict[str, tuple[Callable[[Decode], list[DecodeAction]], Reason]] = {
    "cancel": (lambda d: d.cancel(), Reason.CANCELLED),
    "abandon": (lambda d: d.hear(abandon()), Reason.FINISHED),
    "link lost": (lambda d: d.unlink(), Reason.PEER_LOST),
    "deadline": (lambda d: d.tick(100.0), Reason.DEADLINE),
    "seal too early": (lambda d: d.hear(seal()), Reason.KV_CORRUPT),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_hand_over_fails_once_and_frees_its_span(name: str) -> None:
    breaking, reason = BREAKS[name]
    d = granted()
    d.land(0, 1)
    actions = breaking(d)
    assert d.ends == []
    assert d.states == {DecodeState.CLOSING}
    assert not any(isinstance(action, Landed | Failed) for action in actions)
    (failed,) = d.scattered(0, 1)
    assert isinstance(failed, Failed)
    assert failed.reason is reason
    assert d.states == set()
    stats = d.machine.stats()
    assert stats.landing.free_bytes == stats.landing.total_bytes
    if d.machine.stats().lingering:
        d.hear(abandon(Reason.CANCELLED))
    assert d.is_empty
    d.hear(seal())
    d.hear(abandon())
    assert len(d.ends) == 1


@pytest.mark.parametrize("name", BREAKS)
def test_without_a_running_scatter_the_failure_is_at_once(name: str) -> None:
    d = granted()
    BREAKS[name][0](d)
    (failed,) = d.ends
    assert isinstance(failed, Failed)
    assert failed.reason is BREAKS[name][1]


def test_writes_of_a_cancelled_hand_over_are_swallowed_until_the_writer_is_done() -> None:
    d = granted()
    d.cancel()
    window = d.machine.claim(P1, 1, 0, UNIT)
    assert isinstance(window, LandingWindow)
    assert not window.is_open
    assert d.expect(OTHER) == [grant(2, key=OTHER)]
    assert d.machine.stats().lingering == 1
    d.hear(abandon(Reason.CANCELLED))
    assert d.machine.claim(P1, 1, 0, UNIT) is ClaimRefusal.UNKNOWN_TRANSFER


def test_writes_while_a_failed_hand_over_still_scatters_are_swallowed() -> None:
    d = granted()
    d.land(0, 1)
    d.cancel()
    window = d.machine.claim(P1, 1, UNIT, UNIT)
    assert isinstance(window, LandingWindow)
    assert not window.is_open


def test_a_seal_that_crossed_the_cancel_is_the_writers_last_word() -> None:
    d = granted()
    d.cancel()
    assert d.hear(seal()) == []
    assert d.is_empty
    d = granted()
    d.land(0, 4)
    d.cancel()
    d.hear(seal())
    d.scattered(0, 2)
    assert d.is_empty


def test_what_was_sealed_no_longer_needs_the_link() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal())
    assert d.unlink() == []
    d.scattered(0, 2)
    assert d.scattered(2, 4) == [Landed(KEY, FIRST, 0.0), DONE]


@pytest.mark.parametrize("event", [lambda d: d.cancel(), lambda d: d.tick(100.0)])
def test_a_sealed_hand_over_can_still_be_given_up(event: Callable[[Decode], list[DecodeAction]]) -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal())
    event(d)
    d.scattered(0, 2)
    assert [type(end) for end in d.ends] == [Failed]
    assert d.is_empty


@pytest.mark.parametrize("piece", [0, 1, 5, 15])
def test_one_differing_checksum_is_named_and_nothing_lands(piece: int) -> None:
    d = granted()
    d.land(0, 4)
    wrong = bytearray(sums())
    wrong[piece * 8] ^= 1
    d.hear(seal(checksums=bytes(wrong)))
    d.scattered(0, 2)
    unit, layer, value = piece // 4, piece % 4 // 2, "KV"[piece % 2]
    detail = f"checksum of unit {unit}, layer {layer}, {value}, head group 0 differs"
    done = Done(request=KEY.request, attempt=1, reason=Reason.KV_CORRUPT, detail=detail)
    assert d.scattered(2, 4) == [Send(P1, done), Failed(KEY, Reason.KV_CORRUPT, detail)]
    assert d.is_empty


def test_swapped_units_are_found() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(checksums=sums(1, 2) + sums(0, 1) + sums(2, 4)))
    d.scattered(0, 2)
    d.scattered(2, 4)
    assert [type(end) for end in d.ends] == [Failed]


@pytest.mark.parametrize("size", [0, 8, len(sums()) - 8, len(sums()) + 8])
def test_a_wrong_number_of_checksums_is_refused(size: int) -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(checksums=bytes(size)))
    d.scattered(0, 2)
    (failed,) = d.ends
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.KV_CORRUPT


def test_a_scatter_that_reads_too_little_is_not_admitted() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal())
    d.scattered(0, 2, checksums=sums(0, 1))
    d.scattered(2, 4)
    assert [type(end) for end in d.ends] == [Failed]


def test_with_stamps_coverage_is_what_counts() -> None:
    d = granted(config=replace(CONFIG, verify=Verify.STAMPS))
    d.land(0, 4)
    d.hear(seal(checksums=b""))
    d.scattered(0, 2, checksums=b"")
    assert d.scattered(2, 4, checksums=b"")[0] == Landed(KEY, FIRST, 0.0)
    d = granted(config=replace(CONFIG, verify=Verify.STAMPS))
    d.land(0, 3)
    d.hear(seal(checksums=b""))
    d.scattered(0, 2)
    (failed,) = d.ends
    assert isinstance(failed, Failed)
    assert failed.detail == f"stream bytes [{3 * UNIT}, {4 * UNIT}) never came"


@pytest.mark.parametrize("tokens", [first_tokens(0), first_tokens(0, 2), first_tokens(0, 1, 2), first_tokens(0, 1, 1)])
def test_first_tokens_must_be_those_of_the_choices(tokens: tuple[FirstToken, ...]) -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(tokens=tokens))
    d.scattered(0, 2)
    (failed,) = d.ends
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.BAD_REQUEST


def test_a_scatter_that_failed_fails_the_hand_over() -> None:
    d = granted()
    d.land(0, 4)
    actions = d.machine.scatter_failed(KEY, 0, "device lost", 0.0)
    assert Failed(KEY, Reason.INTERNAL, "scatter: device lost") in actions
    assert reject(Reason.INTERNAL, "scatter: device lost") in actions
    d = granted()
    d.land(0, 4)
    d.cancel()
    assert d.machine.scatter_failed(KEY, 0, "device lost", 0.0) == [Failed(KEY, Reason.CANCELLED, "")]


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
    assert d.expect() == [Failed(KEY, Reason.FINISHED, "")]
    d = Decode()
    d.link()
    d.queue()
    d.hear(abandon())
    assert d.expect() == [Failed(KEY, Reason.FINISHED, "")]


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
    assert d.hear(abandon()) == [Failed(KEY, Reason.FINISHED, "")]
    assert d.states == {DecodeState.GRANTED}


def test_expecting_twice_changes_nothing_and_an_ended_attempt_does_not_come_back() -> None:
    d = granted()
    assert d.expect() == []
    assert d.queue() == []
    d.cancel()
    assert d.expect() == [Failed(KEY, Reason.BAD_REQUEST, "this attempt already ended here")]


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


# One-sided transports -------------------------------------------------------------------------------------------------


def test_one_sided_bytes_are_scattered_after_the_seal() -> None:
    d = granted(one_sided=True)
    assert d.hear(seal()) == [scatter(0, 2)]
    assert d.scattered(0, 2) == [scatter(2, 4)]
    assert d.scattered(2, 4)[0] == Landed(KEY, FIRST, 0.0)
    assert d.is_empty


@pytest.mark.parametrize("name", ["cancel", "link lost", "deadline"])
def test_a_one_sided_span_is_quarantined_until_the_writer_is_proven_done(name: str) -> None:
    d = granted(one_sided=True)
    BREAKS[name][0](d)
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 4 * UNIT
    assert d.machine.holder_of(Extent(0, UNIT)) == P1
    told = d.expect(OTHER)
    assert told == ([] if name == "link lost" else [grant(2, offset=4 * UNIT, key=OTHER)])
    d.hear(abandon(Reason.CANCELLED), P2)
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 4 * UNIT
    d.hear(abandon(Reason.CANCELLED))
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 0


def test_proof_that_the_writer_is_gone_frees_what_was_quarantined() -> None:
    d = granted(one_sided=True, landing_bytes=4 * UNIT)
    d.unlink()
    d.link(P2)
    machine = d.machine
    machine.expected(OTHER, P2, TOKENS, 0, BLOCKS, (0, 1), 100.0, 0.0)
    assert machine.stats().by_state[DecodeState.WAITING] == 1
    assert machine.peer_gone(P2, 0.0) == []
    (sent,) = machine.peer_gone(P1, 0.0)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Grant)


def test_a_one_sided_abandon_is_proof_at_once() -> None:
    d = granted(one_sided=True)
    d.hear(abandon())
    assert d.is_empty
