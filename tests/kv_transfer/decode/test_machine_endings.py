"""How hand-overs end in the decode worker's machine, verified ones and failed ones, and when bytes are free again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baton_kv_transfer.decode.records import DecodeAction, DecodeState, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import Reservation, SendTo, Verify
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow, SpanState
from baton_kv_transfer.layout import Extent
from baton_testing.kv_transfer.builders import first_tokens
from baton_testing.kv_transfer.decode_machine import (
    BLOCKS,
    CONFIG,
    DONE,
    FIRST,
    KEY,
    OTHER,
    P1,
    P2,
    TOKENS,
    UNIT,
    Decode,
    abandon,
    grant,
    granted,
    reject,
    scatter,
    seal,
    sums,
)
from baton_wire.kv_shape import PoolPart, Units
from baton_wire.messages.pair_link import Done, FirstToken, Grant, Standing
from baton_wire.messages.values import Reason

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
    assert not any(isinstance(action, Landed | HandoverFailed) for action in actions)
    (failed,) = d.scattered(0, 1)
    assert isinstance(failed, HandoverFailed)
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
    assert isinstance(failed, HandoverFailed)
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
    assert [type(end) for end in d.ends] == [HandoverFailed]
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
    detail = f"checksum of unit {unit}, layer {layer}, {value} differs"
    done = Done(request=KEY.request, attempt=1, reason=Reason.KV_CORRUPT, detail=detail)
    assert d.scattered(2, 4) == [SendTo(P1, done), HandoverFailed(KEY, Reason.KV_CORRUPT, detail)]
    assert d.is_empty


def test_swapped_units_are_found() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(checksums=sums(1, 2) + sums(0, 1) + sums(2, 4)))
    d.scattered(0, 2)
    d.scattered(2, 4)
    assert [type(end) for end in d.ends] == [HandoverFailed]


@pytest.mark.parametrize("size", [0, 8, len(sums()) - 8, len(sums()) + 8])
def test_a_wrong_number_of_checksums_is_refused(size: int) -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(checksums=bytes(size)))
    d.scattered(0, 2)
    (failed,) = d.ends
    assert isinstance(failed, HandoverFailed)
    assert failed.reason is Reason.KV_CORRUPT


def test_a_scatter_that_reads_too_little_is_not_admitted() -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal())
    d.scattered(0, 2, checksums=sums(0, 1))
    d.scattered(2, 4)
    assert [type(end) for end in d.ends] == [HandoverFailed]


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
    assert isinstance(failed, HandoverFailed)
    assert failed.detail == f"stream bytes [{3 * UNIT}, {4 * UNIT}) never came"


@pytest.mark.parametrize("tokens", [first_tokens(0), first_tokens(0, 2), first_tokens(0, 1, 2), first_tokens(0, 1, 1)])
def test_first_tokens_must_be_those_of_the_choices(tokens: tuple[FirstToken, ...]) -> None:
    d = granted()
    d.land(0, 4)
    d.hear(seal(tokens=tokens))
    d.scattered(0, 2)
    (failed,) = d.ends
    assert isinstance(failed, HandoverFailed)
    assert failed.reason is Reason.BAD_REQUEST


def test_a_scatter_that_failed_fails_the_hand_over() -> None:
    d = granted()
    d.land(0, 4)
    actions = d.machine.scatter_failed(KEY, 0, "device lost", 0.0)
    assert HandoverFailed(KEY, Reason.INTERNAL, "scatter: device lost") in actions
    assert reject(Reason.INTERNAL, "scatter: device lost") in actions
    d = granted()
    d.land(0, 4)
    d.cancel()
    assert d.machine.scatter_failed(KEY, 0, "device lost", 0.0) == [HandoverFailed(KEY, Reason.CANCELLED, "")]


# One-sided transports -------------------------------------------------------------------------------------------------


def test_one_sided_bytes_are_scattered_after_the_seal() -> None:
    d = granted(one_sided=True)
    assert d.hear(seal()) == [replace(scatter(0, 2), one_sided=True)]
    assert d.scattered(0, 2) == [replace(scatter(2, 4), one_sided=True)]
    assert d.scattered(2, 4)[0] == Landed(KEY, FIRST, 0.0)
    assert d.is_empty


def in_groups() -> Decode:
    """Two layer groups of a layer each."""
    return granted(config=replace(CONFIG, max_put_bytes=4 * UNIT, group_bytes=1, max_groups=2), one_sided=True)


def standing(groups: int, transfer: int = 1) -> Standing:
    return Standing(request=KEY.request, attempt=KEY.attempt, transfer=transfer, groups=groups)


def test_groups_that_stand_are_scattered_before_the_seal_and_landed_after_it() -> None:
    d = in_groups()
    (early,) = d.hear(standing(1))
    assert isinstance(early, Scatter)
    assert early.units == Units(early.units.blocks, 4, 0, 4, PoolPart(0, 1, 0, 2))
    assert (early.landing, early.one_sided) == (Extent(0, 2 * UNIT), True)
    assert d.hear(standing(1)) == []
    assert d.hear(seal()) == [], "one scatter at a time"
    (late,) = d.scattered(0, 4, sums()[: len(sums()) // 2])
    assert isinstance(late, Scatter)
    assert (late.units.part.first_layer, late.units.part.end_layer, late.landing) == (1, 2, Extent(2 * UNIT, 2 * UNIT))
    assert d.ends == []
    assert d.scattered(0, 4, sums()[len(sums()) // 2 :])[0] == Landed(KEY, FIRST, 0.0)
    assert d.is_empty


def test_nothing_ends_while_groups_that_stood_are_scattered() -> None:
    d = in_groups()
    assert len(d.hear(standing(2))) == 1
    d.cancel()
    assert d.ends == []
    assert d.machine.stats().landing.free_bytes == 12 * UNIT
    d.scattered(0, 4)
    assert d.ends == [HandoverFailed(KEY, Reason.CANCELLED, "")]
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 4 * UNIT
    assert d.hear(standing(2)) == []
    assert d.refused_count("standing") == 1


def test_a_word_of_groups_counts_from_the_peer_and_for_the_transfer_that_it_is_about() -> None:
    d = in_groups()
    d.link(P2)
    assert d.hear(standing(2), P2) == d.hear(standing(2, transfer=2)) == []
    assert d.refused_count("standing") == 2
    d = granted()
    assert d.hear(standing(1)) == [], "here it is seen what arrives"


@pytest.mark.parametrize("name", ["cancel", "link lost", "deadline"])
def test_a_one_sided_span_is_quarantined_until_the_writer_is_proven_done(name: str) -> None:
    d = granted(one_sided=True)
    BREAKS[name][0](d)
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 4 * UNIT
    assert d.machine.holder_of(Extent(0, UNIT)) == P1
    actions = d.expect(OTHER)
    assert actions == ([] if name == "link lost" else [grant(2, offset=4 * UNIT, key=OTHER)])
    d.hear(abandon(Reason.CANCELLED), P2)
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 4 * UNIT
    d.hear(abandon(Reason.CANCELLED))
    assert d.machine.stats().landing.by_state[SpanState.QUARANTINED] == 0


def test_proof_that_the_writer_is_gone_frees_what_was_quarantined() -> None:
    d = granted(one_sided=True, landing_bytes=4 * UNIT)
    d.unlink()
    d.link(P2)
    machine = d.machine
    machine.expected(OTHER, P2, Reservation(TOKENS, 0, BLOCKS, (0, 1), 100.0), 0.0)
    assert machine.stats().by_state[DecodeState.WAITING] == 1
    assert machine.writes_ended(2, 0.0) == []
    (sent,) = machine.writes_ended(1, 0.0)
    assert isinstance(sent, SendTo)
    assert isinstance(sent.message, Grant)


def test_a_one_sided_abandon_is_proof_at_once() -> None:
    d = granted(one_sided=True)
    d.hear(abandon())
    assert d.is_empty


@pytest.mark.parametrize("is_cancelled_first", [False, True])
def test_a_new_link_owes_no_word_about_what_was_granted_over_the_old_one(is_cancelled_first: bool) -> None:
    d = granted()
    assert d.land(0, 1) == [scatter(0, 1)]
    if is_cancelled_first:
        d.cancel()
    d.unlink()
    d.link()
    d.scattered(0, 1)
    assert [type(end) for end in d.ends] == [HandoverFailed]
    assert d.is_empty, "the connection that could have brought more is closed"
