"""The prefill worker's machine around its hand-overs: KV whose decode worker failed goes to another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, SendTo
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import DropPuts, Granted, PrefillAction, PrefillState, Put, Release, Report
from baton_kv_transfer.prefill.retargeting import PrefillKeeper, Target
from baton_testing.kv_transfer.builders import GEOMETRY, first_tokens
from baton_testing.kv_transfer.prefill_machine import BLOCKS, CONFIG, D1, D2, DONE, FIRST, KEY, REJECT, TOKENS, grant
from baton_wire.messages.pair_link import Abandon, Done, Grant, Reject, Seal
from baton_wire.messages.values import Finish, Reason

NEXT = HandoverKey(KEY.request, 2)
TARGET = Target(NEXT, D2)
KEPT_S = 5.0
RULES = replace(CONFIG, kept_s=KEPT_S)


class Keeper:
    def __init__(self) -> None:
        self.machine = PrefillKeeper(PrefillHandovers(GEOMETRY, RULES), RULES)
        for peer in (D1, D2):
            self.machine.link_up(peer, DecodePeer(4, 1 << 20), 0.0)
        assert self.machine.opened(KEY, D1, TOKENS, 100.0, 0.0) == []

    def compute(self) -> list[PrefillAction]:
        return [
            *self.machine.computed(KEY, TOKENS, BLOCKS, 0.0),
            *self.machine.first_tokens(KEY, FIRST, 0.0),
        ]

    def put_all(self, actions: list[PrefillAction]) -> list[PrefillAction]:
        return [
            done
            for put in actions
            if isinstance(put, Put)
            for done in self.machine.put_done(put.key, put.put, b"", 0.0)
        ]


def granted(attempt: int = 2) -> Grant:
    return grant(attempt=attempt)


@pytest.mark.parametrize("computed", [True, False])
def test_rejected_kv_goes_to_another_decode_worker_and_is_released_once(computed: bool) -> None:
    k = Keeper()
    if computed:
        k.compute()
    assert k.machine.message(D1, REJECT, 0.0) == [
        Report(KEY, Reason.NO_CAPACITY, "rejected by decode: full", 1, kept=True)
    ]
    assert k.machine.kept == 1
    assert k.machine.retargeted(KEY, TARGET, 100.0, 1.0) == []
    actions = k.machine.message(D2, granted(), 2.0)
    assert actions[0] == Granted(KEY)
    if not computed:
        actions = k.compute()
    puts = [action for action in actions if isinstance(action, Put)]
    assert {(put.key, put.peer, put.units.blocks) for put in puts} == {(NEXT, D2, BLOCKS)}
    (seal,) = k.put_all(actions)
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)
    assert (seal.peer, seal.message.attempt, seal.message.first_tokens) == (D2, 2, FIRST)
    assert k.machine.message(D2, Done(request=KEY.request, attempt=2), 3.0) == [Release(KEY)]
    assert k.machine.open_keys() == []


def test_what_is_computed_while_the_kv_is_kept_is_not_lost() -> None:
    k = Keeper()
    k.machine.message(D1, REJECT, 0.0)
    assert k.compute() == []
    k.machine.retargeted(KEY, TARGET, 100.0, 1.0)
    actions = k.machine.message(D2, granted(), 2.0)
    assert len(k.put_all(actions)) == 1


def test_what_is_computed_while_a_failed_attempt_waits_for_its_writes_is_not_lost() -> None:
    """Seed 1504: the second hand-over had no first tokens and made no progress until its deadline."""
    k = Keeper()
    actions = k.machine.message(D1, grant(), 0.0) + k.machine.computed(KEY, 8, BLOCKS[:2], 0.0)
    (put,) = [action for action in actions if isinstance(action, Put)]
    assert k.machine.message(D1, REJECT, 0.0) == [DropPuts(KEY)]
    assert k.compute() == []
    assert k.machine.retargeted(KEY, TARGET, 100.0, 1.0) == []
    k.machine.put_done(KEY, put.put, b"", 1.5)
    (seal,) = k.put_all(k.machine.message(D2, granted(), 2.0))
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)
    assert seal.message.first_tokens == FIRST


def test_a_grant_that_is_faster_than_the_gateways_word_is_kept_for_it() -> None:
    k = Keeper()
    k.compute()
    k.machine.message(D1, REJECT, 0.0)
    assert k.machine.message(D2, granted(), 0.5) == []
    actions = k.machine.retargeted(KEY, TARGET, 100.0, 1.0)
    assert actions[0] == Granted(KEY)


def test_writes_under_way_end_before_the_kv_goes_elsewhere() -> None:
    k = Keeper()
    k.compute()
    puts = [a for a in k.machine.message(D1, grant(), 0.0) if isinstance(a, Put)]
    assert k.machine.retargeted(KEY, TARGET, 100.0, 1.0) == [DropPuts(KEY)]
    assert k.machine.put_failed(KEY, puts[0].put, Reason.CANCELLED, "dropped", 1.0) == []
    (abandon,) = k.machine.put_done(KEY, puts[1].put, b"", 2.0)
    assert isinstance(abandon, SendTo)
    assert isinstance(abandon.message, Abandon)
    assert (abandon.peer, abandon.message.attempt) == (D1, 1)
    assert len(k.put_all(k.machine.message(D2, granted(), 3.0))) == 1


@pytest.mark.parametrize("sealed", [True, False])
def test_a_lost_decode_worker_leaves_the_kv_for_a_while(sealed: bool) -> None:
    k = Keeper()
    actions = k.compute()
    if sealed:
        k.put_all(k.machine.message(D1, grant(), 0.0))
    actions = k.machine.link_down(D1, Reason.PEER_LOST, "silent", 1.0)
    assert actions == ([] if sealed else [Report(KEY, Reason.PEER_LOST, "silent", 1, kept=True)])
    assert k.machine.tick(1.0 + KEPT_S - 0.1) == []
    report, release = k.machine.tick(1.0 + KEPT_S)
    assert isinstance(report, Report)
    assert (report.reason, report.attempt, report.kept) == (Reason.UNKNOWN_REQUEST, 1, False)
    assert release == Release(KEY)


@pytest.mark.parametrize("kept", [True, False])
def test_a_cancel_frees_kept_kv_at_once(kept: bool) -> None:
    k = Keeper()
    k.compute()
    if kept:
        k.machine.message(D1, REJECT, 0.0)
    assert k.machine.cancelled(KEY, Reason.CANCELLED, "", 1.0)[-1] == Release(KEY)
    assert k.machine.kept == 0


def test_a_request_that_ended_elsewhere_is_not_kept() -> None:
    k = Keeper()
    rejected = Reject(request=KEY.request, attempt=1, reason=Reason.CANCELLED)
    assert k.machine.message(D1, rejected, 0.0) == [Release(KEY)]
    k = Keeper()
    k.compute()
    k.put_all(k.machine.message(D1, grant(), 0.0))
    assert k.machine.message(D1, DONE, 0.0) == [Release(KEY)]


def test_kept_kv_of_a_request_that_ends_with_its_first_token_is_freed() -> None:
    k = Keeper()
    k.machine.message(D1, REJECT, 0.0)
    assert k.machine.first_tokens(KEY, first_tokens(0, finish=Finish.STOP), 0.0) == [Release(KEY)]


def test_the_word_for_what_is_over_is_answered() -> None:
    k = Keeper()
    k.machine.cancelled(KEY, Reason.CANCELLED, "", 0.0)
    (report,) = k.machine.retargeted(KEY, TARGET, 100.0, 1.0)
    assert isinstance(report, Report)
    assert (report.reason, report.attempt) == (Reason.UNKNOWN_REQUEST, 2)


def test_it_can_be_sent_on_again() -> None:
    k = Keeper()
    k.compute()
    k.machine.message(D1, REJECT, 0.0)
    k.machine.retargeted(KEY, TARGET, 100.0, 1.0)
    (report,) = k.machine.link_down(D2, Reason.PEER_LOST, "silent", 2.0)
    assert report == Report(KEY, Reason.PEER_LOST, "silent", 2, kept=True)
    k.machine.retargeted(KEY, Target(HandoverKey(KEY.request, 3), D1), 100.0, 3.0)
    (seal,) = k.put_all(k.machine.message(D1, granted(3), 4.0))
    assert isinstance(seal, SendTo)
    assert seal.peer == D1
    assert k.machine.stats().by_state[PrefillState.SEALED] == 1
