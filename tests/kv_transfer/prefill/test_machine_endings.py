"""How hand-overs end in the prefill worker's machine, and when their blocks are released."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_kv_transfer.handover import CutLink, SendTo
from baton_kv_transfer.prefill.records import DropPuts, Granted, PrefillAction, PrefillState, Release, Report
from baton_testing.kv_transfer.builders import first_tokens
from baton_testing.kv_transfer.prefill_machine import (
    CORRUPT,
    D1,
    DONE,
    KEY,
    REJECT,
    TOKENS,
    WAIT,
    Prefill,
    abandon,
    grant,
    run,
    sealed,
    units,
)
from baton_wire.messages.values import Finish, Reason


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
    assert (stats.unannounced_messages, stats.unannounced_requests, stats.ended) == (0, 0, {"cancelled": 1})
    if not linked:
        assert p.link() == []
    assert p.compute() == p.draw() == p.cancel() == []
    assert p.machine.stats().unannounced_requests == 0
    assert p.hear(grant()) == [abandon(Reason.CANCELLED)]
    assert p.releases == 1


def test_a_cancel_of_what_is_never_opened_is_kept_for_a_bounded_time() -> None:
    p = Prefill()
    p.cancel()
    assert p.machine.stats().unannounced_requests == 1
    assert p.tick(29.9) == []
    assert p.machine.stats().unannounced_requests == 1
    assert p.tick(30.0) == []
    assert p.machine.stats().unannounced_requests == 0
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
    assert p.machine.stats().unannounced_requests == 0


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


def test_a_sealed_hand_over_is_sealed_once_whatever_the_engine_reports_again() -> None:
    p = sealed()
    assert p.compute() == []
    assert p.states == {PrefillState.SEALED}


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
        Report(KEY, Reason.PEER_LOST, "no link to, or no answer of, the decode worker"),
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
    assert [type(action) for action in actions] == [SendTo, Report, Release]


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
