"""A decode worker of two ranks and a prefill worker of one, step by step."""

from __future__ import annotations

from dataclasses import replace

from baton_kv_transfer.decode.group import AtDecodeRank, DecodeGroup, GroupDecodeAction
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import HandoverFailed
from baton_kv_transfer.handover import Reservation, SendTo
from baton_kv_transfer.landing import SpanState
from baton_kv_transfer.ranks.tensor_parallel import RankPeer
from baton_testing.kv_transfer.builders import GEOMETRY
from baton_testing.kv_transfer.decode_machine import BLOCKS, CONFIG, KEY, P1, TOKENS, UNIT
from baton_wire.messages.pair_link import Abandon, Grant, PairMessage, Reject
from baton_wire.messages.values import Reason

PEER = RankPeer(P1, ranks=1)
ABANDON = Abandon(request=KEY.request, attempt=KEY.attempt, reason=Reason.CANCELLED)


def group() -> DecodeGroup:
    shard = replace(GEOMETRY, kv_heads=GEOMETRY.kv_heads // 2)
    return DecodeGroup(GEOMETRY, [DecodeHandovers(shard, 16 * UNIT, CONFIG, one_sided=True) for _ in range(2)], CONFIG)


def expect(machine: DecodeGroup, now: float = 0.0) -> list[GroupDecodeAction]:
    return machine.expected(KEY, P1, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), now)


def sent(actions: list[GroupDecodeAction]) -> list[tuple[int, type[PairMessage]]]:
    rank_actions = [(action.rank, action.action) for action in actions if isinstance(action, AtDecodeRank)]
    return [(rank, type(action.message)) for rank, action in rank_actions if isinstance(action, SendTo)]


def quarantined(machine: DecodeGroup) -> list[int]:
    return [stats.landing.by_state[SpanState.QUARANTINED] for stats in machine.stats()]


def test_nothing_begins_before_every_rank_is_linked_and_then_all_legs_do() -> None:
    machine = group()
    machine.link_up(0, PEER, 4, 0.0)
    assert sent(expect(machine)) == []
    assert sent(machine.link_up(1, PEER, 4, 1.0)) == [(0, Grant), (1, Grant)]


def test_ranks_that_never_link_end_the_wait_and_the_linked_ones_hear_of_it() -> None:
    machine = group()
    machine.link_up(0, PEER, 4, 0.0)
    expect(machine)
    ended = machine.tick(CONFIG.link_wait_s)
    assert sent(ended) == [(0, Reject)]
    assert [action.reason for action in ended if isinstance(action, HandoverFailed)] == [Reason.PEER_LOST]


def test_one_lost_link_ends_every_leg_and_each_span_waits_for_its_own_proof() -> None:
    machine = group()
    for rank in range(2):
        machine.link_up(rank, PEER, 4, 0.0, link=1)
    expect(machine)
    ended = machine.link_down(0, PEER, "cut", 1.0)
    assert sent(ended) == [(1, Reject)]
    assert [action.key for action in ended if isinstance(action, HandoverFailed)] == [KEY]
    assert quarantined(machine) == [2 * UNIT, 2 * UNIT]
    machine.message(1, PEER, ABANDON, 2.0)
    assert quarantined(machine) == [2 * UNIT, 0]
    machine.writes_ended(0, 1, 3.0)
    assert quarantined(machine) == [0, 0]
    assert machine.open_keys() == []
