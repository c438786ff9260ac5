"""A gateway among others that hold prompts: its announcements to the worker that gives turns, and when it may send."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from baton_gateway.requests.own_rounds import OwnRounds
from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_wire.messages.gateway_link import HeldTurn, Holding, WorkerState
from baton_wire.messages.values import Address, Role
from baton_wire.rules.gateway_rounds import SILENT_S, TURN_S, HeldRank, Urgency

STATE = WorkerState(False, 0, 0, 0, 90, 0, 5, 0.1, turn=HeldTurn(0, 2))
PRINT = cast(Any, "a")


class Fleet:
    """Prefill workers with these epochs, and the messages sent to each."""

    def __init__(self, *epochs: bytes) -> None:
        self.now, self.table = 10.0, WorkerTable()
        self.sent: list[tuple[bytes, Holding]] = []
        for epoch in epochs:
            hello = SimpleNamespace(
                epoch=epoch, role=Role.PREFILL, fingerprint=PRINT, max_context_tokens=9, encoding=None, blocks_total=9
            )
            text = cast(Any, SimpleNamespace(longest_token_bytes=None))
            worker = LinkedWorker(
                cast(Any, hello), Address("h", 1), text, self._sender(epoch), clock=lambda: self.now, state=STATE
            )
            worker.record_report(STATE)
            assert self.table.add(worker)
        self.turns = OwnRounds(self.table)

    def _sender(self, epoch: bytes) -> Callable[[Any], bool]:
        def send(message: Any) -> bool:
            self.sent.append((epoch, message))
            return True

        return send

    def tell(self, urgency: Urgency | None) -> list[tuple[bytes, Holding]]:
        before = len(self.sent)
        self.turns.announce({} if urgency is None else {PRINT: urgency}, self.now)
        return self.sent[before:]


def test_the_worker_with_the_lowest_epoch_hears_each_change() -> None:
    fleet, first = Fleet(b"2", b"1"), Urgency(HeldRank.IN_TIME, 10.25)
    assert fleet.tell(first) == [(b"1", Holding(0, 0.25))]
    fleet.now += 0.1
    assert fleet.tell(first) == [], "it knows when that prompt has to start"
    fleet.now = 10.25
    assert fleet.tell(Urgency(HeldRank.IN_TIME, 10.5)) == [(b"1", Holding(0, 0.25))]
    assert fleet.tell(Urgency(HeldRank.LATE)) == [(b"1", Holding(2))]
    assert fleet.tell(None) == [(b"1", Holding(None))]


def test_another_worker_hears_once_the_first_is_gone_or_drains() -> None:
    fleet, urgency = Fleet(b"1", b"2", b"3"), Urgency(HeldRank.LATE)
    assert [epoch for epoch, _ in fleet.tell(urgency)] == [b"1"]
    fleet.table.remove(b"1")
    assert [epoch for epoch, _ in fleet.tell(urgency)] == [b"1", b"2"]
    draining = fleet.table.get(b"2")
    assert draining is not None
    draining.record_report(replace(STATE, draining=True))
    assert [epoch for epoch, _ in fleet.tell(urgency)] == [b"2", b"3"]


def test_a_turn_ends_with_as_much_work_as_the_workers_do_meanwhile() -> None:
    fleet = Fleet(b"1", b"2")
    assert fleet.turns.wait_s(PRINT) == 0.0
    fleet.turns.record_sent(PRINT, 1.5 * TURN_S)
    assert fleet.turns.wait_s(PRINT) == 0.0, "two workers"
    fleet.turns.record_sent(PRINT, TURN_S)
    assert fleet.turns.wait_s(PRINT) == SILENT_S
    turn_giver = fleet.table.get(b"1")
    assert turn_giver is not None
    turn_giver.record_report(STATE)
    assert fleet.turns.wait_s(PRINT) == 0.0, "another round"


def test_the_next_prompt_is_told_even_if_it_is_as_urgent() -> None:
    fleet, urgency = Fleet(b"1"), Urgency(HeldRank.IN_TIME, 10.25)
    fleet.tell(urgency)
    fleet.turns.record_sent(PRINT, 0.01)
    assert fleet.tell(urgency) == [(b"1", Holding(0, 0.25))]
    fleet.turns.record_sent(PRINT, 0.01)
    assert fleet.tell(None) == [(b"1", Holding(None))], "it was the last"


def test_nobody_waits_where_nobody_keeps_turns() -> None:
    assert Fleet().turns.wait_s(PRINT) == 0.0
