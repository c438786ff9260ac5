"""A prefill worker's machines in terms of workers, step by step: one rank or two, against decode workers of either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_kv_transfer import messages
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, SendTo, TransferConfig
from baton_kv_transfer.layout import StreamLayout
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.ranks import PrefillRanks
from baton_kv_transfer.prefill.records import PrefillAction, Put, Release, Report
from baton_kv_transfer.ranks.tensor_parallel import rank_geometries
from baton_testing.kv_transfer.builders import GEOMETRY, first_tokens
from baton_wire.errors import BadMessageError
from baton_wire.messages.pair_link import Abandon, AtRanks, Done, Grant, LegMessage, PairMessage, Reject, Seal, Span
from baton_wire.messages.values import Reason

CONFIG = TransferConfig()
KEY, D = HandoverKey(b"r" * 16, 1), b"d" * 16
BLOCKS, TOKENS = (4, 7), 8


def worker(ranks: int) -> PrefillRanks:
    machines = [PrefillHandovers(shape, CONFIG) for shape in rank_geometries(GEOMETRY, ranks)]
    return PrefillRanks(GEOMETRY, machines, CONFIG)


def facts(ranks: int) -> DecodePeer:
    return DecodePeer(block_tokens=4, landing_bytes=1 << 16, ranks=ranks)


def leg_grant(key: HandoverKey = KEY, heads: int = 1) -> Grant:
    layout = StreamLayout(replace(GEOMETRY, kv_heads=heads), 4, 0, TOKENS)
    return messages.grant(key, 1, layout, (Span(offset=0, length=layout.stream_bytes),))


def sent(actions: list[PrefillAction], kind: type[PairMessage] | None = None) -> list[tuple[int, int, LegMessage]]:
    """Messages inside `AtRanks` to the one decode worker, with their ranks."""
    found = [action.message for action in actions if isinstance(action, SendTo)]
    assert all(action.peer == D for action in actions if isinstance(action, SendTo))
    legs = [(m.prefill_rank, m.decode_rank, m.message) for m in found if isinstance(m, AtRanks)]
    return [leg for leg in legs if kind is None or isinstance(leg[2], kind)]


def finish(machine: PrefillRanks, now: float) -> list[PrefillAction]:
    return machine.computed(KEY, TOKENS, BLOCKS, now) + machine.first_tokens(KEY, first_tokens(0), now)


def test_a_request_that_was_opened_before_the_decode_worker_linked_becomes_legs_with_its_progress() -> None:
    machine = worker(1)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    finish(machine, 0.0)
    machine.link_up(D, facts(2), 1.0)
    puts = [put for rank in (0, 1) for put in machine.message(D, AtRanks(0, rank, leg_grant()), 1.0)]
    first, second = [put for put in puts if isinstance(put, Put)]
    assert (first.key.rank, second.key.rank, first.peer, second.peer) == (0, 1, D, D)
    seals = [leg for put in (first, second) for leg in sent(machine.put_done(put.key, put.put, bytes(32), 2.0))]
    assert [(prefill, decode, type(message)) for prefill, decode, message in seals] == [(0, 0, Seal), (0, 1, Seal)]
    assert machine.message(D, AtRanks(0, 0, messages.verified(KEY)), 3.0) == []
    assert machine.message(D, AtRanks(0, 1, messages.verified(KEY)), 3.0) == [Release(KEY)]
    assert machine.stats().ended == {"done": 1}
    assert machine.open_keys() == []


def test_two_ranks_with_legs_to_one_decode_rank_keep_their_puts_apart() -> None:
    machine = worker(2)
    machine.link_up(D, facts(1), 0.0)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    finish(machine, 0.0)
    puts = [put for rank in (0, 1) for put in machine.message(D, AtRanks(rank, 0, leg_grant()), 1.0)]
    first, second = [put for put in puts if isinstance(put, Put)]
    assert first.put == second.put, "each rank's machine has numbers of its own"
    assert first.key != second.key
    assert [leg[:2] for leg in sent(machine.put_done(second.key, second.put, bytes(32), 1.0))] == [(1, 0)]
    assert [leg[:2] for leg in sent(machine.put_done(first.key, first.put, bytes(32), 1.0))] == [(0, 0)]


@pytest.mark.parametrize(("ranks", "leg"), [(1, (0, 0)), (1, (0, 1)), (2, (0, 0)), (2, (1, 1))])
def test_a_grant_for_a_request_that_was_cancelled_before_its_link_is_answered_at_once(
    ranks: int, leg: tuple[int, int]
) -> None:
    """Otherwise the decode worker's landing bytes would wait for `unannounced_s`."""
    machine = worker(ranks)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    assert machine.cancelled(KEY, Reason.CANCELLED, "", 0.5) == [Release(KEY)]
    machine.link_up(D, facts(2), 1.0)
    answers = sent(machine.message(D, AtRanks(*leg, leg_grant()), 1.0))
    assert [(rank, peer, type(answer)) for rank, peer, answer in answers] == [(*leg, Abandon)]


def test_grants_that_came_before_their_request_are_answered_when_another_leg_was_rejected() -> None:
    machine = worker(2)
    machine.link_up(D, facts(2), 0.0)
    machine.message(D, AtRanks(0, 0, Reject(KEY.request, 1, Reason.NO_CAPACITY)), 0.0)
    machine.message(D, AtRanks(1, 1, leg_grant()), 0.0)
    ended = machine.opened(KEY, D, TOKENS, 30.0, 1.0)
    assert [leg[:2] for leg in sent(ended, Abandon)] == [(1, 1)]
    assert [action.reason for action in ended if isinstance(action, Report)] == [Reason.NO_CAPACITY]
    assert ended[-1] == Release(KEY)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_that_was_given_up_before_it_was_opened_is_released_when_it_is(ranks: int) -> None:
    machine = worker(ranks)
    machine.link_up(D, facts(2), 0.0)
    assert machine.cancelled(KEY, Reason.CANCELLED, "", 0.0) == []
    assert Release(KEY) in machine.opened(KEY, D, TOKENS, 30.0, 1.0)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("reason", [Reason.UNFIT_PAIR, Reason.PEER_LOST])
def test_a_link_that_cannot_be_made_ends_the_wait_for_it_at_once(ranks: int, reason: Reason) -> None:
    machine = worker(ranks)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    ended = machine.link_down(D, reason, "tensor_parallel: 3", 0.1)
    assert [action.reason for action in ended if isinstance(action, Report)] == [reason]
    assert Release(KEY) in ended


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_link_ends_all_legs_and_none_of_their_grants_is_answered_afterwards(ranks: int) -> None:
    """A write of theirs may still land: only the decode worker can tell when its bytes are at rest."""
    machine = worker(ranks)
    machine.link_up(D, facts(2), 0.0)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    finish(machine, 0.0)
    legs = [(0, 0), (0, 1)] if ranks == 1 else [(0, 0), (1, 1)]
    puts = [put for leg in legs for put in machine.message(D, AtRanks(*leg, leg_grant()), 1.0)]
    down = machine.link_down(D, Reason.PEER_LOST, "cut", 2.0)
    ended = [
        action
        for put in puts
        if isinstance(put, Put)
        for action in machine.put_failed(put.key, put.put, Reason.PEER_LOST, "cut", 2.0)
    ]
    assert [action.reason for action in down + ended if isinstance(action, Report)] == [Reason.PEER_LOST]
    assert [action for action in down + ended if isinstance(action, Release)] == [Release(KEY)]
    machine.link_up(D, facts(2), 3.0)
    for leg in legs:
        assert machine.message(D, AtRanks(*leg, leg_grant()), 3.0) == []


def test_messages_outside_their_ranks_close_the_link() -> None:
    machine = worker(2)
    machine.link_up(D, facts(2), 0.0)
    for stranger in (AtRanks(0, 1, leg_grant()), AtRanks(5, 0, leg_grant()), leg_grant(), messages.verified(KEY)):
        with pytest.raises(BadMessageError):
            machine.message(D, stranger, 0.0)
    single = worker(1)
    single.link_up(D, facts(1), 0.0)
    with pytest.raises(BadMessageError, match="exchange no heads"):
        single.message(D, AtRanks(0, 0, leg_grant()), 0.0)


def test_a_refusal_of_one_leg_ends_the_others_with_its_reason() -> None:
    machine = worker(2)
    machine.link_up(D, facts(2), 0.0)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    machine.message(D, AtRanks(1, 1, leg_grant()), 0.5)
    ended = machine.message(D, AtRanks(0, 0, Reject(KEY.request, 1, Reason.NO_CAPACITY)), 1.0)
    assert [leg[:2] for leg in sent(ended, Abandon)] == [(1, 1)]
    assert [action.reason for action in ended if isinstance(action, Report)] == [Reason.NO_CAPACITY]
    assert Release(KEY) in ended


def test_a_message_that_does_not_fit_its_type_ends_every_leg() -> None:
    machine = worker(2)
    machine.link_up(D, facts(2), 0.0)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    ended = machine.spoilt(D, KEY.request, KEY.attempt, "spans: too many", 1.0)
    assert [action.reason for action in ended if isinstance(action, Report)] == [Reason.INTERNAL]
    assert len(sent(ended, Abandon)) == 2
    assert Release(KEY) in ended


def test_pairs_of_one_rank_see_no_ranks_at_all() -> None:
    machine = worker(1)
    machine.link_up(D, facts(1), 0.0)
    machine.opened(KEY, D, TOKENS, 30.0, 0.0)
    finish(machine, 0.0)
    (put,) = [action for action in machine.message(D, leg_grant(heads=2), 1.0) if isinstance(action, Put)]
    assert put.key == KEY
    (seal,) = machine.put_done(put.key, put.put, bytes(64), 1.0)
    assert isinstance(seal, SendTo)
    assert isinstance(seal.message, Seal)
    assert machine.message(D, Done(KEY.request, 1), 2.0) == [Release(KEY)]
    assert machine.stats().ended == {"done": 1}
