"""Whole sequences through the prefill worker's machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baton_kv_transfer.errors import BadMessageError
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import CutLink, HandoverKey, Send, TransferConfig, Verify
from baton_kv_transfer.handover_prefill import PrefillHandovers
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.prefill_records import DropPuts, Granted, PrefillAction, PrefillState, Put, Release, Report
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
from baton_kv_transfer.wire.values import Finish, Reason
from baton_testing.kv_transfer import GEOMETRY, first_tokens

UNIT = GEOMETRY.block_bytes
CONFIG = TransferConfig(max_put_bytes=2 * UNIT, link_wait_s=10.0, early_s=30.0, pin_s=60.0, closing_s=5.0)
D1, D2 = b"1" * 16, b"2" * 16
KEY = HandoverKey(b"r" * 16, 1)
TOKENS, BLOCKS = 14, (9, 4, 5, 2)
FIRST = first_tokens(0, 1)


def grant(start: int = 0, end: int = TOKENS, **changes: object) -> Grant:
    units = -(-end // 4) - start // 4
    spans = (Span(offset=1_000, length=units * UNIT),) if units else ()
    values = {
        "request": KEY.request,
        "attempt": KEY.attempt,
        "transfer": 7,
        "start_tokens": start,
        "end_tokens": end,
        "unit_tokens": 4,
        "spans": spans,
        **changes,
    }
    return Grant(**values)  # type: ignore[arg-type]


WAIT = Wait(request=KEY.request, attempt=KEY.attempt, position=2)
REJECT = Reject(request=KEY.request, attempt=KEY.attempt, reason=Reason.NO_CAPACITY, detail="full")
DONE = Done(request=KEY.request, attempt=KEY.attempt)
CORRUPT = Done(request=KEY.request, attempt=KEY.attempt, reason=Reason.KV_CORRUPT, detail="unit 3")


class Prefill:
    """The machine, its clock, and everything it asked for since the last look."""

    def __init__(self, config: TransferConfig = CONFIG) -> None:
        self.machine = PrefillHandovers(GEOMETRY, config)
        self.now = 0.0
        self.puts: dict[int, Put] = {}
        self.all: list[PrefillAction] = []

    def _took(self, actions: list[PrefillAction]) -> list[PrefillAction]:
        self.puts.update({action.put: action for action in actions if isinstance(action, Put)})
        self.all += actions
        return actions

    def link(self, peer: bytes = D1, block_tokens: int = 4) -> list[PrefillAction]:
        return self._took(self.machine.link_up(peer, DecodePeer(block_tokens, 1 << 20), self.now))

    def unlink(self, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.link_down(peer, Reason.PEER_LOST, "silent", self.now))

    def open(self, deadline_s: float = 100.0, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.opened(KEY, peer, TOKENS, deadline_s, self.now))

    def compute(self, tokens: int = TOKENS) -> list[PrefillAction]:
        return self._took(self.machine.computed(KEY, tokens, BLOCKS[: -(-tokens // 4)], self.now))

    def draw(self, tokens: tuple[FirstToken, ...] = FIRST) -> list[PrefillAction]:
        return self._took(self.machine.first_tokens(KEY, tokens, self.now))

    def hear(self, message: PairMessage, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.message(peer, message, self.now))

    def cancel(self, reason: Reason = Reason.CANCELLED) -> list[PrefillAction]:
        return self._took(self.machine.cancelled(KEY, reason, "", self.now))

    def put_done(self, put: int) -> list[PrefillAction]:
        asked = self.puts[put]
        sums = b"".join(unit.to_bytes(8) for unit in range(asked.first_unit, asked.end_unit))
        return self._took(self.machine.put_done(KEY, put, sums, self.now))

    def put_failed(self, put: int) -> list[PrefillAction]:
        return self._took(self.machine.put_failed(KEY, put, Reason.PEER_LOST, "broken pipe", self.now))

    def tick(self, now: float) -> list[PrefillAction]:
        self.now = now
        return self._took(self.machine.tick(now))

    @property
    def states(self) -> set[PrefillState]:
        return {state for state, count in self.machine.stats().by_state.items() if count}

    def refused(self, cause: str) -> int:
        return self.machine.stats().refused.get(cause, 0)

    @property
    def releases(self) -> int:
        return sum(isinstance(action, Release) for action in self.all)


def abandon(reason: Reason, detail: str = "", peer: bytes = D1) -> Send:
    return Send(peer, Abandon(request=KEY.request, attempt=KEY.attempt, reason=reason, detail=detail))


def run(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()


def units(actions: list[PrefillAction]) -> list[tuple[int, int]]:
    return [(action.first_unit, action.end_unit) for action in actions if isinstance(action, Put)]


def sealed() -> Prefill:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute, p.draw)
    for put in list(p.puts):
        p.put_done(put)
    assert p.states == {PrefillState.SEALED}
    return p


def test_units_are_put_as_they_are_computed_and_the_seal_comes_last() -> None:
    p = Prefill()
    p.link()
    assert p.open() == []
    assert p.compute(5) == []
    actions = p.hear(grant())
    assert actions == [Granted(KEY), Put(KEY, D1, 1, 7, BLOCKS[:2], 4, 0, 1, (Extent(1_000, UNIT),))]
    assert units(p.compute(7)) == []
    assert units(p.compute(12)) == [(1, 3)]
    assert units(p.compute(14)) == [(3, 4)]
    assert p.put_done(2) == []
    assert p.draw() == []
    assert p.put_done(1) == []
    (seal,) = p.put_done(3)
    sums = b"".join(unit.to_bytes(8) for unit in range(4))
    assert seal == Send(
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
    assert [type(action) for action in p.put_done(2)] == [Send]


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("was_computed", [True, False])
def test_a_cancel_that_is_faster_than_the_request_ends_it_when_it_comes(linked: bool, was_computed: bool) -> None:
    p = Prefill()
    if linked:
        p.link()
    if was_computed:
        run(p.compute, p.draw)
    assert p.cancel() == []
    assert p.compute() == p.draw() == []
    assert p.open() == ([abandon(Reason.CANCELLED)] if linked else []) + [Release(KEY)]
    assert p.states == set()
    assert p.machine.open_keys() == []
    stats = p.machine.stats()
    assert (stats.early, stats.ahead, stats.ended) == (0, 0, {"cancelled": 1})
    if not linked:
        assert p.link() == []
    assert p.compute() == p.draw() == p.cancel() == []
    assert p.machine.stats().ahead == 0
    assert p.hear(grant()) == [abandon(Reason.CANCELLED)]
    assert p.releases == 1


def test_a_cancel_of_what_is_never_opened_is_kept_for_a_bounded_time() -> None:
    p = Prefill()
    p.cancel()
    assert p.machine.stats().ahead == 1
    assert p.tick(29.9) == []
    assert p.machine.stats().ahead == 1
    assert p.tick(30.0) == []
    assert p.machine.stats().ahead == 0
    assert p.open() == []
    assert p.states == {PrefillState.LINKING}


def test_a_cancel_and_a_grant_that_are_both_faster_than_the_request_end_it_when_it_comes() -> None:
    p = Prefill()
    run(p.link, lambda: p.hear(grant()), p.cancel)
    assert p.open() == [Granted(KEY), abandon(Reason.CANCELLED), Release(KEY)]
    assert p.states == set()


@pytest.mark.parametrize("ahead", [Prefill.cancel, Prefill.compute])
def test_nothing_is_kept_of_a_request_that_was_rejected_before_it_came(
    ahead: Callable[[Prefill], list[PrefillAction]],
) -> None:
    p = Prefill()
    run(p.link, lambda: p.hear(REJECT), lambda: ahead(p))
    assert p.open() == [Report(KEY, Reason.NO_CAPACITY, "rejected by decode: full"), Release(KEY)]
    assert p.machine.stats().ahead == 0


def test_a_grant_after_everything_is_computed_puts_all_at_once_in_bounded_pieces() -> None:
    p = Prefill()
    for step in (p.link, p.open, p.compute, p.draw):
        assert step() == []
    assert units(p.hear(grant())) == [(0, 2), (2, 4)]


def test_only_the_missing_part_is_put() -> None:
    p = Prefill()
    run(p.link, p.open, p.compute, p.draw)
    actions = p.hear(grant(12))
    assert actions == [Granted(KEY), Put(KEY, D1, 1, 7, BLOCKS, 4, 3, 4, (Extent(1_000, UNIT),))]


def test_an_empty_transfer_is_sealed_without_a_put() -> None:
    p = Prefill()
    p.link()
    p.machine.opened(KEY, D1, 12, 100.0, 0.0)
    p.hear(grant(12, 12))
    p.machine.computed(KEY, 12, BLOCKS[:3], 0.0)
    (seal,) = p.draw()
    assert isinstance(seal, Send)
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
    assert isinstance(seal, Send)
    assert isinstance(seal.message, Seal)
    assert seal.message.checksums == b""


@pytest.mark.parametrize("granted", [True, False])
def test_when_every_choice_finished_it_is_abandoned_without_a_report(granted: bool) -> None:
    p = Prefill()
    p.link()
    p.open()
    if granted:
        p.hear(grant())
    p.compute(3)
    assert p.draw(first_tokens(0, 1, finish=Finish.STOP)) == [abandon(Reason.FINISHED), Release(KEY)]
    late = [] if granted else [abandon(Reason.FINISHED)]
    assert p.hear(grant()) == (late or [abandon(Reason.FINISHED)])


def test_one_unfinished_choice_is_handed_over() -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute)
    p.put_done(1)
    p.put_done(2)
    (seal,) = p.draw((FirstToken(choice=0, token=1, finish=Finish.LENGTH), FirstToken(choice=1, token=2)))
    assert isinstance(seal, Send)
    assert isinstance(seal.message, Seal)


BREAKS: dict[str, tuple[Callable[[Prefill], list[PrefillAction]], list[PrefillAction]]] = {
    "cancel": (lambda p: p.cancel(), [abandon(Reason.CANCELLED), Release(KEY)]),
    "the engine gave up": (
        lambda p: p.cancel(Reason.INTERNAL),
        [abandon(Reason.INTERNAL), Release(KEY)],
    ),
    "reject": (
        lambda p: p.hear(REJECT),
        [
            abandon(Reason.NO_CAPACITY, "rejected by decode: full"),
            Report(KEY, Reason.NO_CAPACITY, "rejected by decode: full"),
            Release(KEY),
        ],
    ),
    "link lost": (lambda p: p.unlink(), [Report(KEY, Reason.PEER_LOST, "silent"), Release(KEY)]),
    "deadline": (
        lambda p: p.tick(100.0),
        [
            abandon(Reason.DEADLINE, "in state sending"),
            Report(KEY, Reason.DEADLINE, "in state sending"),
            Release(KEY),
        ],
    ),
    "a put fails": (
        lambda p: p.put_failed(1),
        [abandon(Reason.PEER_LOST, "broken pipe"), Report(KEY, Reason.PEER_LOST, "broken pipe"), Release(KEY)],
    ),
    "another grant": (
        lambda p: p.hear(grant(transfer=8)),
        [
            abandon(Reason.BAD_REQUEST, "grant: a second, different grant"),
            Report(KEY, Reason.BAD_REQUEST, "grant: a second, different grant"),
            Release(KEY),
        ],
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_blocks_are_released_only_after_the_last_put_in_flight(name: str) -> None:
    breaking, ending = BREAKS[name]
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute, p.draw)
    assert list(p.puts) == [1, 2]
    assert breaking(p) == [DropPuts(KEY)]
    assert p.states == {PrefillState.CLOSING}
    assert p.compute() == p.draw() == p.cancel() == p.hear(grant()) == p.hear(REJECT) == []
    rest = [put for put in (1, 2) if not (name == "a put fails" and put == 1)]
    for put in rest[:-1]:
        assert p.put_done(put) == []
    assert p.put_failed(rest[-1]) == ending
    assert p.states == set()


@pytest.mark.parametrize("name", [name for name in BREAKS if name not in ("a put fails", "another grant")])
def test_with_nothing_in_flight_the_end_is_at_once(name: str) -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()))
    assert BREAKS[name][0](p) == BREAKS[name][1]
    assert p.releases == 1


@pytest.mark.parametrize(
    ("event", "ended"),
    [
        (lambda p: p.hear(DONE), "done"),
        (lambda p: p.hear(CORRUPT), "kv_corrupt"),
        (lambda p: p.hear(REJECT), "no_capacity"),
        (lambda p: p.unlink(), "peer_lost"),
        (lambda p: p.cancel(), "cancelled"),
        (lambda p: p.tick(100.0), "deadline"),
    ],
)
def test_from_the_seal_on_the_decode_workers_word_counts(
    event: Callable[[Prefill], list[PrefillAction]], ended: str
) -> None:
    p = sealed()
    assert event(p) == [Release(KEY)]
    assert p.machine.stats().ended == {ended: 1}
    assert p.hear(DONE) == []
    assert p.releases == 1


@pytest.mark.parametrize("computed", [0, TOKENS])
def test_without_a_link_it_waits_only_so_long(computed: int) -> None:
    p = Prefill()
    p.open()
    p.compute(computed)
    assert p.tick(9.9) == []
    assert p.tick(10.0) == [
        Report(KEY, Reason.PEER_LOST, "no link to, or no word from, the decode worker"),
        Release(KEY),
    ]


def test_finished_kv_waits_pinned_for_a_first_word_and_then_until_the_deadline() -> None:
    p = Prefill()
    run(p.open, p.compute, p.draw, p.link)
    assert p.tick(59.0) == []
    p.hear(WAIT)
    assert p.tick(99.0) == []
    assert units(p.hear(grant())) == [(0, 2), (2, 4)]


def test_finished_kv_that_nobody_speaks_of_is_given_up() -> None:
    p = Prefill()
    run(p.link, p.open, p.compute, p.draw)
    assert p.tick(59.9) == []
    actions = p.tick(60.0)
    assert [type(action) for action in actions] == [Send, Report, Release]


def test_a_deadline_in_every_waiting_state_ends_it() -> None:
    for steps in range(5):
        p = Prefill()
        path: list[Callable[[Prefill], object]] = [
            Prefill.link,
            lambda p: p.hear(WAIT),
            Prefill.compute,
            Prefill.draw,
            lambda p: p.hear(grant()),
        ]
        p.open(deadline_s=5.0)
        for step in path[:steps]:
            step(p)
        assert p.tick(4.9) == []
        actions = p.tick(5.0)
        for put in p.puts:
            actions += p.put_done(put)
        assert actions[-1] == Release(KEY)
        assert [action.reason for action in actions if isinstance(action, Report)] == [Reason.DEADLINE]


def test_a_write_that_does_not_end_costs_the_link() -> None:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute, p.cancel)
    assert p.tick(4.9) == []
    assert p.tick(5.0) == [CutLink(D1, f"a write of {KEY} does not end")]
    assert p.tick(9.0) == []
    assert p.tick(10.0) == [CutLink(D1, f"a write of {KEY} does not end")]
    assert p.unlink() == []
    p.put_failed(1)
    assert p.put_failed(2) == [Release(KEY)]


BAD_GRANTS = {
    "wrong end": grant(end=13),
    "wrong unit": grant(unit_tokens=2),
    "start inside a unit": grant(start_tokens=2),
    "start after the end": grant(start_tokens=16, spans=()),
    "too few bytes": grant(spans=(Span(offset=0, length=3 * UNIT),)),
    "too many bytes": grant(spans=(Span(offset=0, length=5 * UNIT),)),
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
    assert [type(action) for action in actions] == [Send, Report, Release]
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
    assert p.machine.stats().early == 0


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
    assert lost == Send(D1, Abandon(request=bytes(16), attempt=1, reason=Reason.NO_CAPACITY))


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
