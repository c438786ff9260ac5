"""Seeded runs of both hand-over machines in a world that delays, cancels, cuts, kills and corrupts.

The second half runs deliberately wrong machines: each must be caught, or the checks check nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from baton_kv_transfer.decode.group import DecodeGroup, GroupDecodeAction
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, DecodeState, HandoverFailed
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.prefill.group import PrefillGroup
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import Release
from baton_kv_transfer.ranks.tensor_parallel import RankPair
from baton_testing.ranks.nodes import Faults
from baton_testing.ranks.world import World
from baton_testing.simulation.zoo.transfer import (
    FailsWhileScattering,
    FreesUnderOpenWrites,
    IgnoresLostLinks,
    KeepsBlocksWhenRejected,
    MarksCorruptAsLanded,
    NeverEndsEmptyTransfers,
    SealsBeforePutsEnd,
)
from baton_wire.messages.pair_link import Seal
from baton_wire.messages.values import Reason

SEEDS = range(50)
WORLDS = {
    "calm": Faults(cancel=0.0, link_cuts=0, deaths=0, slow_writes=0.0),
    "rough": Faults(),
    "rough, one-sided": Faults(one_sided=True, slow_writes=0.3),
    "one-sided, links hold": Faults(
        one_sided=True, slow_writes=0.0, cancel=0.6, link_cuts=0, deaths=0, message_delay_s=0.4
    ),
    "corrupting": Faults(corrupt=0.2, deaths=0),
    "deadly": Faults(link_cuts=4, deaths=3, message_delay_s=0.3),
    "ranks, 4 heads": Faults(kv_heads=4, ranks=(1, 2, 4, 8), corrupt=0.02),
    "ranks, 2 heads, one-sided": Faults(kv_heads=2, ranks=(1, 2, 4, 8), one_sided=True, slow_writes=0.3),
    "ranks over one link, 4 heads": Faults(kv_heads=4, ranks=(1, 2, 4, 8), corrupt=0.02, one_link=True),
    "ranks over one link, 2 heads, one-sided": Faults(
        kv_heads=2, ranks=(1, 2, 4, 8), one_sided=True, slow_writes=0.3, one_link=True
    ),
}


@pytest.mark.parametrize("faults", WORLDS.values(), ids=list(WORLDS))
def test_nothing_leaks_and_nothing_unverified_lands(faults: Faults) -> None:
    landed = 0
    for seed in SEEDS:
        world = World(seed, faults)
        try:
            world.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}, {faults}")
            raise
        landed += len(world.landed_keys)
    assert landed > 2 * len(SEEDS)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("ranks", list(product((1, 2, 4, 8), repeat=2)), ids=lambda ranks: f"{ranks[0]} to {ranks[1]}")
def test_every_number_of_ranks_gets_its_heads_from_every_other(ranks: tuple[int, int], kv_heads: int) -> None:
    """With partial last units, prefixes that are cached already, and both block sizes."""
    prefill, decode = ranks
    faults = replace(WORLDS["calm"], kv_heads=kv_heads, ranks=(prefill,), decode_ranks=(decode,))
    world = World(64 * prefill + 8 * decode + kv_heads, faults, num_requests=5)
    world.run()
    assert world.landed_keys


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = []
    for _ in range(2):
        world = World(5, WORLDS["deadly"])
        world.run()
        traces.append(world.heap.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 50


def test_in_a_calm_world_every_request_lands_or_is_finished_or_too_long() -> None:
    for seed in range(20):
        world = World(seed, WORLDS["calm"])
        world.run()
        for request in world.requests.values():
            reasons = world.failures.get(request.key, [])
            good = {Reason.FINISHED, Reason.TOO_LONG, Reason.DEADLINE}
            assert request.key in world.landed_keys or good & set(reasons), (seed, request, reasons)


class IgnoresALateSeal(DecodeHandovers):
    """Waits for a message that was already sent: a Seal that crossed a cancel."""

    def _seal(self, peer: bytes, seal: Seal, now: float) -> list[DecodeAction]:
        handover = self._handovers.get(HandoverKey(seal.request, seal.attempt))
        closing = handover is None or handover.state is DecodeState.CLOSING
        return [] if closing else super()._seal(peer, seal, now)


class AdmitsTheFirstRank(DecodeGroup):
    """Lands when one rank's part is verified (vllm#52234 for one of several ranks)."""

    def _landed(self, rank, key, first_tokens, granted_s, now):  # type: ignore[no-untyped-def]
        handover = self._open[replace(key, rank=0)]
        handover.open.clear()
        handover.coverage.clear()
        return super()._landed(rank, key, first_tokens, granted_s, now)


class LeavesTheOtherRanks(DecodeGroup):
    """A rank's failure gives the blocks back, and the others' legs go on into them (vllm#46283)."""

    def _fail(self, handover, reason, detail, now):  # type: ignore[no-untyped-def]
        first, handover.failure = handover.failure is None, handover.failure or (reason, detail)
        return [*([HandoverFailed(handover.key, reason, detail)] if first else []), *self._end(handover)]  # type: ignore[no-untyped-call]

    def _end(self, handover):  # type: ignore[no-untyped-def]
        ends = super()._end(handover)
        return ends if handover.failure is None else []


class WaitsForTheOtherRanks(DecodeGroup):
    """A rank's failure ends nothing: the others' legs are waited for, whose senders gave up (sglang#29482)."""

    def _fail(self, handover, reason, detail, now):  # type: ignore[no-untyped-def]
        handover.failure = handover.failure or (reason, detail)
        return self._end(handover)

    def tick(self, now: float) -> list[GroupDecodeAction]:
        return []


class ReleasesWithTheFirstRank(PrefillGroup):
    """vllm#55470 for one of several ranks: blocks are free when one rank has no more use of its part."""

    _early: frozenset[HandoverKey] = frozenset()

    def _end(self, handover, now):  # type: ignore[no-untyped-def]
        ends, is_early = super()._end(handover, now), handover.key in self._early
        if not ends and not is_early and not handover.is_beginning:
            self._early |= {handover.key}
            return [Release(handover.key)]
        return [] if is_early else ends


class SendsEveryRankTheFirstHeads(PrefillGroup):
    """Every decode rank gets the heads of the first (vllm#48633 C3, by heads)."""

    def _local(self, pair: RankPair) -> range:
        return range(len(pair.heads))


RANKS = Faults(kv_heads=4, ranks=(1, 2, 4, 8))


@pytest.mark.parametrize(
    ("variant", "faults"),
    [
        (AdmitsTheFirstRank, RANKS),
        (LeavesTheOtherRanks, replace(RANKS, cancel=0.9)),
        (WaitsForTheOtherRanks, RANKS),
        (ReleasesWithTheFirstRank, RANKS),
        (SendsEveryRankTheFirstHeads, RANKS),
        (SealsBeforePutsEnd, Faults()),
        (KeepsBlocksWhenRejected, Faults(cancel=0.9)),
        (MarksCorruptAsLanded, Faults(corrupt=0.2)),
        (FreesUnderOpenWrites, Faults(one_sided=True, link_cuts=4, slow_writes=0.6)),
        (IgnoresALateSeal, Faults(cancel=0.9, message_delay_s=0.4)),
        (FailsWhileScattering, Faults(cancel=0.9)),
        (NeverEndsEmptyTransfers, Faults()),
        (IgnoresLostLinks, Faults(link_cuts=4)),
    ],
)
def test_a_wrong_machine_is_caught(variant: type, faults: Faults) -> None:
    assert any(_violates(seed, variant, faults) for seed in range(40)), f"{variant.__name__} passed every seed"


def _violates(seed: int, variant: type, faults: Faults) -> bool:
    parts = {
        PrefillHandovers: "make_prefill",
        DecodeHandovers: "make_decode",
        PrefillGroup: "make_prefill_group",
        DecodeGroup: "make_decode_group",
    }
    part = {parts[variant.__base__]: variant}  # type: ignore[index]
    try:
        World(seed, faults, **part).run()  # type: ignore[arg-type]
    except AssertionError:
        return True
    return False
