"""A decode worker with a working link that answers nothing: two hand-overs later its link is dialled again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_kv_transfer.handover import CutLink, TransferConfig
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import PrefillAction
from baton_testing.kv_transfer.prefill_machine import CORRUPT, D1, D2, DONE, KEY, REJECT, WAIT, Prefill, grant
from baton_wire.messages.pair_link import Reject
from baton_wire.messages.values import Reason

DEAD_S = TransferConfig().liveness.dead_s


def seal(p: Prefill) -> None:
    ungranted(p)
    p.hear(grant())
    for put in list(p.puts):
        p.put_done(put)


def ungranted(p: Prefill) -> None:
    p.open(p.now + 60.0)
    p.compute()
    p.draw()


def send(p: Prefill) -> None:
    ungranted(p)
    p.hear(grant())


def queue(p: Prefill) -> None:
    ungranted(p)
    p.hear(WAIT)


def compute(p: Prefill) -> None:
    """Granted, and nothing to put yet."""
    p.open(p.now + 60.0)
    p.hear(grant())


class Attempts:
    """One hand-over after the other; the machine keeps what it knows of its peers."""

    def __init__(self) -> None:
        self.p = Prefill()
        self.p.link()
        self.p.link(D2)

    def next(self, begin: Callable[[Prefill], None], end: Callable[[Prefill], list[PrefillAction]]) -> list[CutLink]:
        begin(self.p)
        actions = end(self.p)
        for put in list(self.p.puts):
            actions += self.p.put_failed(put)
        self.p.puts.clear()
        self._forget()
        return [action for action in actions if isinstance(action, CutLink)]

    def _forget(self) -> None:
        """The next hand-over may have the same name."""
        machine: PrefillHandovers = self.p.machine
        assert machine.open_keys() == []
        machine._ended.expire(self.p.now + 1_000.0)


def waits_out(p: Prefill) -> list[PrefillAction]:
    return p.tick(p.now + 61.0)


def gives_up(reason: Reason) -> Callable[[Prefill], list[PrefillAction]]:
    """The decode worker's own deadline is a moment earlier, or the gateway's word reaches it first."""

    def reject(p: Prefill) -> list[PrefillAction]:
        p.now += 60.0
        return p.hear(Reject(request=KEY.request, attempt=KEY.attempt, reason=reason, detail="no seal"))

    return reject


def hangs_up(after_s: float) -> Callable[[Prefill], list[PrefillAction]]:
    """The client loses patience."""

    def cancel(p: Prefill) -> list[PrefillAction]:
        p.now += after_s
        return p.cancel()

    return cancel


@pytest.mark.parametrize("begin", [seal, ungranted, send])
@pytest.mark.parametrize(
    "end",
    [waits_out, gives_up(Reason.DEADLINE), gives_up(Reason.CANCELLED), hangs_up(DEAD_S)],
    ids=["deadline", "its deadline", "its cancel", "cancel"],
)
def test_the_second_silent_hand_over_in_a_row_cuts_the_link(
    begin: Callable[[Prefill], None], end: Callable[[Prefill], list[PrefillAction]]
) -> None:
    attempts = Attempts()
    assert attempts.next(begin, end) == []
    (cut,) = attempts.next(begin, end)
    assert cut.peer == D1
    assert "2 hand-overs in a row" in cut.detail
    assert attempts.next(begin, end) == []  # counted anew


@pytest.mark.parametrize("verdict", [DONE, CORRUPT, REJECT])
def test_any_verdict_between_begins_the_count_anew(verdict: object) -> None:
    attempts = Attempts()
    for _ in range(3):
        assert attempts.next(seal, waits_out) == []
        assert attempts.next(seal, lambda p: p.hear(verdict)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("begin", [queue, compute])
def test_who_has_no_room_or_nothing_to_answer_is_not_suspected(begin: Callable[[Prefill], None]) -> None:
    attempts = Attempts()
    for _ in range(4):
        assert attempts.next(begin, hangs_up(30.0)) == []


def test_a_short_wait_proves_nothing() -> None:
    attempts = Attempts()
    for _ in range(4):
        assert attempts.next(seal, hangs_up(DEAD_S - 0.1)) == []


def test_a_new_link_begins_the_count_anew() -> None:
    attempts = Attempts()
    assert attempts.next(seal, waits_out) == []
    attempts.p.unlink()
    attempts.p.link()
    assert attempts.next(seal, waits_out) == []


def test_a_write_that_ends_late_is_a_sign_of_work() -> None:
    attempts = Attempts()

    def slowly(p: Prefill) -> None:
        send(p)
        p.now += 10.0
        p.put_done(next(iter(p.puts)))

    for _ in range(3):
        assert attempts.next(slowly, hangs_up(DEAD_S - 0.1)) == []


def test_each_decode_worker_has_a_count_of_its_own() -> None:
    attempts = Attempts()

    def to_the_other(p: Prefill) -> None:
        p.open(p.now + 60.0, D2)
        p.compute()
        p.draw()

    assert attempts.next(seal, waits_out) == []
    assert attempts.next(to_the_other, waits_out) == []
    (cut,) = attempts.next(to_the_other, waits_out)
    assert cut.peer == D2
    assert Reason.DEADLINE in attempts.p.machine.stats().ended
