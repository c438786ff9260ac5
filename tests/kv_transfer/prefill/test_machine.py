"""Whole sequences through the prefill worker's machine: what is put when, and which messages are not acted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_kv_transfer.handover import SendTo, Verify
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.prefill.records import Granted, PrefillState, Put, Release, Report
from baton_testing.kv_transfer.builders import WHOLE
from baton_testing.kv_transfer.prefill_machine import (
    BLOCKS,
    CONFIG,
    D1,
    D2,
    DONE,
    FIRST,
    KEY,
    REJECT,
    UNIT,
    WAIT,
    Prefill,
    abandon,
    grant,
    run,
    units,
)
from baton_wire.errors import BadMessageError
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import Abandon, FirstToken, Heartbeat, PairMessage, Seal, Span
from baton_wire.messages.values import Finish, Reason


def test_units_are_put_as_they_are_computed_and_the_seal_comes_last() -> None:
    p = Prefill()
    p.link()
    assert p.open() == []
    assert p.compute(5) == []
    actions = p.hear(grant())
    assert actions == [Granted(KEY), Put(KEY, D1, 1, 7, Units(BLOCKS[:2], 4, 0, 1, WHOLE), (Extent(1_000, UNIT),))]
    assert units(p.compute(7)) == []
    assert units(p.compute(12)) == [(1, 3)]
    assert units(p.compute(14)) == [(3, 4)]
    assert p.put_done(2) == []
    assert p.draw() == []
    assert p.put_done(1) == []
    (seal,) = p.put_done(3)
    sums = b"".join(unit.to_bytes(8) for unit in range(4))
    assert seal == SendTo(
        D1, Seal(request=KEY.request, attempt=KEY.attempt, transfer=7, checksums=sums, first_tokens=FIRST)
    )
    assert p.hear(DONE) == [Release(KEY)]
    assert p.machine.stats().ended == {"done": 1}


def test_a_grant_before_the_request_is_kept_for_it() -> None:
    p = Prefill()
    p.link()
    assert p.hear(grant(8)) == []
    assert p.open() == [Granted(KEY)]
    assert units(p.compute()) == [(2, 4)]


@pytest.mark.parametrize("linked", [True, False])
def test_an_engine_that_is_faster_than_the_request_is_heard_when_it_comes(linked: bool) -> None:
    p = Prefill()
    if linked:
        run(p.link, lambda: p.hear(grant()))
    assert p.compute(5) == p.compute() == p.draw() == []
    actions = p.open()
    if not linked:
        run(p.link)
        actions = p.hear(grant())
    assert units(actions) == [(0, 2), (2, 4)]
    p.put_done(1)
    assert [type(action) for action in p.put_done(2)] == [SendTo]


def test_a_grant_after_everything_is_computed_puts_all_at_once_in_bounded_pieces() -> None:
    p = Prefill()
    for step in (p.link, p.open, p.compute, p.draw):
        assert step() == []
    assert units(p.hear(grant())) == [(0, 2), (2, 4)]


def test_only_the_missing_part_is_put() -> None:
    p = Prefill()
    run(p.link, p.open, p.compute, p.draw)
    actions = p.hear(grant(12))
    assert actions == [Granted(KEY), Put(KEY, D1, 1, 7, Units(BLOCKS, 4, 3, 4, WHOLE), (Extent(1_000, UNIT),))]


def test_an_empty_transfer_is_sealed_without_a_put() -> None:
    p = Prefill()
    p.link()
    p.machine.opened(KEY, D1, 12, 100.0, 0.0)
    p.hear(grant(12, 12))
    p.machine.computed(KEY, 12, BLOCKS[:3], 0.0)
    (seal,) = p.draw()
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)
    assert seal.message.checksums == b""


def test_a_put_runs_through_the_spans() -> None:
    p = Prefill()
    run(p.link, p.open, p.compute)
    spans = (Span(offset=4_096, length=UNIT), Span(offset=0, length=3 * UNIT))
    puts = [action for action in p.hear(grant(spans=spans)) if isinstance(action, Put)]
    assert [put.landing for put in puts] == [
        (Extent(4_096, UNIT), Extent(0, UNIT)),
        (Extent(UNIT, 2 * UNIT),),
    ]


def test_smaller_blocks_at_the_other_side_make_smaller_units() -> None:
    p = Prefill()
    p.link(block_tokens=2)
    p.open()
    p.compute()
    small = grant(unit_tokens=2, spans=(Span(offset=0, length=7 * UNIT // 2),))
    assert units(p.hear(small)) == [(0, 4), (4, 7)]


def test_with_stamps_the_seal_carries_no_checksums() -> None:
    p = Prefill(replace(CONFIG, verify=Verify.STAMPS))
    run(p.link, p.open, lambda: p.hear(grant()), p.compute, p.draw)
    p.put_done(1)
    (seal,) = p.put_done(2)
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)
    assert seal.message.checksums == b""


def test_one_unfinished_choice_is_handed_over() -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute)
    p.put_done(1)
    p.put_done(2)
    (seal,) = p.draw((FirstToken(choice=0, token=1, finish=Finish.LENGTH), FirstToken(choice=1, token=2)))
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)


BAD_GRANTS = {
    "wrong end": grant(end=13),
    "wrong unit": grant(unit_tokens=2),
    "start inside a unit": grant(start_tokens=2),
    "start after the end": grant(start_tokens=16, spans=()),
    "too few bytes": grant(spans=(Span(offset=0, length=3 * UNIT),)),
    "too many bytes": grant(spans=(Span(offset=0, length=5 * UNIT),)),
    "spans that cut a unit": grant(spans=(Span(offset=0, length=UNIT + 8), Span(offset=2 * UNIT, length=3 * UNIT - 8))),
    "overlapping spans": grant(spans=(Span(offset=0, length=2 * UNIT), Span(offset=UNIT, length=2 * UNIT))),
    "outside the region": grant(spans=(Span(offset=(1 << 20) - UNIT, length=4 * UNIT),)),
}


@pytest.mark.parametrize("name", BAD_GRANTS)
@pytest.mark.parametrize("early", [True, False])
def test_a_grant_that_does_not_fit_is_never_acted_on(name: str, early: bool) -> None:
    p = Prefill()
    p.link()
    if early:
        p.hear(BAD_GRANTS[name])
    actions = p.open()
    if not early:
        actions = p.hear(BAD_GRANTS[name])
    assert [type(action) for action in actions] == [SendTo, Report, Release]
    assert isinstance(actions[1], Report)
    assert actions[1].reason is Reason.BAD_REQUEST
    assert not p.puts
    assert p.refused("bad_grant") == 1


def test_the_same_grant_twice_changes_nothing() -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute)
    assert p.hear(grant()) == []
    assert p.refused("duplicate_grant") == 1
    assert list(p.puts) == [1, 2]


def test_another_workers_messages_are_not_acted_on() -> None:
    p = Prefill()
    p.link(D1)
    p.link(D2)
    p.open()
    assert p.hear(grant(), D2) == [abandon(Reason.UNKNOWN_REQUEST, peer=D2)]
    for message in (REJECT, WAIT, DONE):
        assert p.hear(message, D2) == []
    assert p.states == {PrefillState.UNGRANTED}
    assert p.refused("foreign_epoch") == 3
    assert p.unlink(D2) == []


def test_a_verdict_before_the_seal_is_not_believed() -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute)
    assert p.hear(DONE) == []
    assert p.refused("done_before_seal") == 1
    assert p.states == {PrefillState.SENDING}


def test_a_rejection_before_the_request_ends_it_when_it_comes() -> None:
    p = Prefill()
    p.link()
    p.hear(grant())
    assert p.hear(REJECT) == [abandon(Reason.NO_CAPACITY)]
    assert p.open() == [Report(KEY, Reason.NO_CAPACITY, "rejected by decode: full"), Release(KEY)]


def test_an_early_word_is_kept_for_a_bounded_time() -> None:
    p = Prefill()
    p.link()
    p.hear(grant())
    assert p.tick(29.9) == []
    assert p.tick(30.0) == [abandon(Reason.UNKNOWN_REQUEST)]
    assert p.machine.stats().unannounced_messages == 0


def test_early_words_die_with_their_link() -> None:
    p = Prefill()
    p.link()
    p.hear(grant())
    p.unlink()
    p.link()
    p.open()
    assert p.compute() == []


def test_early_words_are_bounded_in_number() -> None:
    p = Prefill()
    p.link()
    for number in range(4_096):
        assert p.hear(grant(request=number.to_bytes(16))) == []
    (lost,) = p.hear(grant(request=b"x" * 16))
    assert lost == SendTo(D1, Abandon(request=bytes(16), attempt=1, reason=Reason.NO_CAPACITY))


def test_a_late_grant_is_answered_with_why_it_ended() -> None:
    p = Prefill()
    p.link()
    p.open()
    p.cancel()
    assert p.hear(grant()) == [abandon(Reason.CANCELLED)]
    assert p.hear(WAIT) == []
    assert p.refused("late") == 2


def test_opening_twice_changes_nothing_and_an_ended_attempt_does_not_come_back() -> None:
    p = Prefill()
    p.link()
    p.open()
    assert p.open() == []
    p.cancel()
    actions = p.open()
    assert [type(action) for action in actions] == [Report, Release]


@pytest.mark.parametrize("message", [Heartbeat(), WAIT, REJECT, DONE, grant()])
def test_any_message_about_the_unknown_is_harmless(message: PairMessage) -> None:
    p = Prefill()
    p.link()
    assert p.hear(message) == []
    assert p.states == set()


def test_messages_of_the_wrong_side_are_a_breach() -> None:
    p = Prefill()
    p.link()
    for message in (
        Abandon(request=KEY.request, attempt=1, reason=Reason.CANCELLED),
        Seal(request=KEY.request, attempt=1, transfer=1, checksums=b"", first_tokens=FIRST),
    ):
        with pytest.raises(BadMessageError, match="not a decode worker's message"):
            p.hear(message)


def test_reports_of_unknown_puts_are_counted() -> None:
    p = Prefill()
    p.machine.put_done(KEY, 5, b"", 0.0)
    p.machine.put_failed(KEY, 5, Reason.PEER_LOST, "", 0.0)
    assert p.refused("unknown_put") == 2


def test_a_message_that_does_not_fit_ends_its_hand_over_and_is_reported() -> None:
    p = Prefill()
    p.link()
    p.open()
    p.hear(grant())
    assert p.machine.spoilt(D2, KEY.request, KEY.attempt, "Done: no", p.now) == []
    actions = p.machine.spoilt(D1, KEY.request, KEY.attempt, "Done: no", p.now)
    assert actions == [abandon(Reason.INTERNAL, "Done: no"), Report(KEY, Reason.INTERNAL, "Done: no"), Release(KEY)]
    assert p.machine.spoilt(D1, KEY.request, KEY.attempt, "Done: no", p.now) == []


def test_a_grant_that_does_not_fit_and_comes_before_its_request_is_answered() -> None:
    p = Prefill()
    p.link()
    assert p.machine.spoilt(D1, KEY.request, KEY.attempt, "Grant: no", p.now) == [abandon(Reason.INTERNAL, "Grant: no")]
