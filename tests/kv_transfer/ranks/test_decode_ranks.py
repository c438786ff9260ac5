"""A decode worker's machines in terms of workers, step by step: one rank or two, against prefill workers of either."""

from __future__ import annotations

import pytest

from baton_kv_transfer import messages
from baton_kv_transfer.decode.ranks import DecodeRanks, decode_machines
from baton_kv_transfer.decode.records import DecodeAction, DecodeState, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import HandoverKey, Reservation, SendTo, TransferConfig, Verify
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow, SpanState
from baton_kv_transfer.ranks.tensor_parallel import rank_geometries
from baton_testing.kv_transfer.builders import GEOMETRY, first_tokens
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.messages.pair_link import AtRanks, Grant, PairMessage, Reject, Seal, Wait
from baton_wire.messages.values import Reason

CONFIG = TransferConfig(verify=Verify.STAMPS)
KEY, P, OTHER = HandoverKey(b"r" * 16, 1), b"p" * 16, b"o" * 16
TOKENS, BLOCKS = 8, (3, 5)
LANDING = 4_096
LEG_BYTES = 2 * GEOMETRY.block_bytes // 2


def worker(ranks: int, landing_bytes: int = LANDING) -> DecodeRanks:
    return DecodeRanks(GEOMETRY, decode_machines(rank_geometries(GEOMETRY, ranks), landing_bytes, CONFIG), CONFIG)


def expect(machine: DecodeRanks, peer: bytes = P, key: HandoverKey = KEY, now: float = 0.0) -> list[DecodeAction]:
    return machine.expected(key, peer, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), now)


def sent(actions: list[DecodeAction], kind: type[PairMessage]) -> list[tuple[int, int]]:
    """(prefill rank, decode rank) of each message of this kind."""
    found = [action.message for action in actions if isinstance(action, SendTo)]
    legs = [message for message in found if isinstance(message, AtRanks)]
    return [(leg.prefill_rank, leg.decode_rank) for leg in legs if isinstance(leg.message, kind)]


def grants(actions: list[DecodeAction]) -> dict[tuple[int, int], Grant]:
    found = [action.message for action in actions if isinstance(action, SendTo)]
    legs = [message for message in found if isinstance(message, AtRanks)]
    return {(m.prefill_rank, m.decode_rank): m.message for m in legs if isinstance(m.message, Grant)}


def land(machine: DecodeRanks, leg: tuple[int, int], grant: Grant, now: float) -> list[DecodeAction]:
    """All bytes of a leg arrive and are scattered, and it is sealed."""
    actions: list[DecodeAction] = []
    for span in grant.spans:
        window = machine.claim(P, grant.transfer, span.offset, span.length)
        assert isinstance(window, LandingWindow)
        actions += machine.arrived(window, now)
    while scatters := [action for action in actions if isinstance(action, Scatter)]:
        assert machine.holder_of(scatters[0].landing) == P
        actions = machine.scattered(scatters[0].key, scatters[0].units.first, b"", now)
    seal = Seal(KEY.request, KEY.attempt, grant.transfer, b"", first_tokens(0))
    return machine.message(P, AtRanks(*leg, seal), now)


@pytest.mark.parametrize(("ranks", "peers", "legs"), [(2, 1, [(0, 0), (0, 1)]), (1, 2, [(0, 0), (1, 0)])])
def test_a_request_lands_once_when_all_its_legs_have(ranks: int, peers: int, legs: list[tuple[int, int]]) -> None:
    machine = worker(ranks)
    assert expect(machine) == []
    granted = grants(machine.link_up(P, 4, 1.0, ranks=peers))
    assert sorted(granted) == legs
    assert not any(isinstance(action, Landed) for action in land(machine, legs[0], granted[legs[0]], 2.0))
    (landed,) = [action for action in land(machine, legs[1], granted[legs[1]], 3.0) if isinstance(action, Landed)]
    assert (landed.key, landed.first_tokens) == (KEY, first_tokens(0))
    stats = machine.stats()
    assert stats.ended == {"landed": 1}
    assert stats.landing.free_bytes == stats.landing.total_bytes == machine.landing_bytes == LANDING


def test_the_ranks_bytes_lie_one_after_the_other_and_a_put_stays_in_its_own() -> None:
    machine = worker(2)
    machine.link_up(P, 4, 0.0, ranks=1)
    machine.link_up(OTHER, 4, 0.0, ranks=2)
    granted = grants(expect(machine))
    first, second = granted[0, 0].spans[0], granted[0, 1].spans[0]
    assert (first.offset, second.offset) == (0, LANDING // 2)
    transfer = granted[0, 1].transfer
    assert machine.claim(OTHER, transfer, second.offset, 8) is ClaimRefusal.FOREIGN_PEER
    assert machine.claim(P, transfer + 7, second.offset, 8) is ClaimRefusal.UNKNOWN_TRANSFER
    assert machine.claim(P, transfer, second.offset + second.length, 8) is ClaimRefusal.OUT_OF_SPAN
    assert machine.claim(P, transfer, LANDING + 8, 8) is ClaimRefusal.OUT_OF_SPAN
    assert machine.claim(P, granted[0, 0].transfer, LANDING // 2 - 8, 16) is ClaimRefusal.OUT_OF_SPAN
    assert isinstance(machine.claim(P, transfer, second.offset, second.length), LandingWindow)
    assert machine.claim(P, transfer, second.offset, 8) is ClaimRefusal.OVERLAP


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_link_fails_every_leg_once_and_frees_all_bytes(ranks: int) -> None:
    machine = worker(ranks)
    machine.link_up(P, 4, 0.0, ranks=2)
    assert len(grants(expect(machine))) == 2
    down = machine.link_down(P, "cut", 1.0)
    assert [(action.key, action.reason) for action in down if isinstance(action, HandoverFailed)] == [
        (KEY, Reason.PEER_LOST)
    ]
    stats = machine.stats()
    assert stats.landing.free_bytes == LANDING
    assert stats.lingering == sum(stats.by_state.values()) == 0
    assert machine.open_keys() == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_sided_spans_wait_for_the_proof_of_the_one_link(ranks: int) -> None:
    machine = worker(ranks)
    machine.link_up(P, 4, 0.0, ranks=2, one_sided=True, link=7)
    expect(machine)
    machine.link_down(P, "cut", 1.0)
    assert machine.stats().landing.by_state[SpanState.QUARANTINED] == 2 * LEG_BYTES
    machine.writes_ended(6, 2.0)
    assert machine.stats().landing.by_state[SpanState.QUARANTINED] == 2 * LEG_BYTES
    machine.writes_ended(7, 2.0)
    assert machine.stats().landing.free_bytes == LANDING


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cancel_rejects_every_leg_and_a_wait_goes_to_each(ranks: int) -> None:
    machine = worker(ranks)
    machine.link_up(P, 4, 0.0, ranks=2)
    legs = [(0, 0), (1, 0)] if ranks == 1 else [(0, 0), (1, 1)]
    assert sent(machine.queued(KEY, P, 3, 100.0, 0.0), Wait) == legs
    assert sent(expect(machine), Grant) == legs
    cancelled = machine.cancelled(KEY, Reason.CANCELLED, "", 1.0)
    assert sent(cancelled, Reject) == legs
    assert [action.reason for action in cancelled if isinstance(action, HandoverFailed)] == [Reason.CANCELLED]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_that_waited_for_blocks_before_its_peer_linked_is_handed_over_in_legs(ranks: int) -> None:
    machine = worker(ranks)
    machine.queued(KEY, P, 0, 100.0, 0.0)
    machine.link_up(P, 4, 1.0, ranks=2)
    assert len(grants(expect(machine, now=2.0))) == 2
    assert machine.stats().by_state[DecodeState.QUEUED] == 0


def test_legs_that_do_not_fit_into_a_rank_together_are_too_long() -> None:
    machine = worker(1, landing_bytes=3 * LEG_BYTES // 2)
    machine.link_up(P, 4, 0.0, ranks=2)
    failed = [action for action in expect(machine) if isinstance(action, HandoverFailed)]
    assert [action.reason for action in failed] == [Reason.TOO_LONG]


def test_one_worker_of_one_rank_serves_single_and_split_peers_at_once() -> None:
    machine = worker(1)
    machine.link_up(P, 4, 0.0, ranks=2)
    machine.link_up(OTHER, 4, 0.0)
    legs = grants(expect(machine))
    (single,) = expect(machine, OTHER, HandoverKey(b"s" * 16, 1))
    assert isinstance(single, SendTo)
    assert isinstance(single.message, Grant)
    assert len({single.message.transfer, *(grant.transfer for grant in legs.values())}) == 3
    assert machine.claim(P, single.message.transfer, single.message.spans[0].offset, 8) is ClaimRefusal.FOREIGN_PEER
    assert len(machine.open_keys()) == 2
    machine.link_down(OTHER, "cut", 1.0)
    assert machine.open_keys() == [KEY]


def test_a_leg_that_no_pair_of_ranks_has_and_a_bare_message_close_the_link() -> None:
    machine = worker(2)
    machine.link_up(P, 4, 0.0, ranks=2)
    for stranger in (
        AtRanks(0, 1, messages.abandon(KEY, Reason.CANCELLED)),
        messages.abandon(KEY, Reason.CANCELLED),
    ):
        with pytest.raises(BadMessageError):
            machine.message(P, stranger, 0.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_degree_that_does_not_divide_the_heads_is_refused_by_the_machine_too(ranks: int) -> None:
    machine = worker(ranks)
    with pytest.raises(UnfitPairError, match=f"tensor_parallel: {ranks} here, 3 there: 3 ranks do not fit 2 KV heads"):
        machine.link_up(P, 4, 0.0, ranks=3)


def test_a_message_that_does_not_fit_its_type_ends_every_leg() -> None:
    machine = worker(2)
    machine.link_up(P, 4, 0.0, ranks=2)
    expect(machine)
    ended = machine.spoilt(P, KEY.request, KEY.attempt, "checksums: too many", 1.0)
    assert sent(ended, Reject) == [(0, 0), (1, 1)]
    assert [action.reason for action in ended if isinstance(action, HandoverFailed)] == [Reason.INTERNAL]
