"""Seeded runs of both hand-over machines in a world that delays, cancels, cuts, kills and corrupts.

The second half runs deliberately wrong machines: each must be caught, or the checks check nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_kv_transfer.decode_records import DecodeAction, DecodeState
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.handover_decode import DecodeHandovers
from baton_kv_transfer.handover_prefill import PrefillHandovers
from baton_kv_transfer.prefill_records import PrefillAction, Release
from baton_kv_transfer.wire.pair_link import Seal
from baton_kv_transfer.wire.values import Reason
from baton_testing.handover_nodes import Faults
from baton_testing.handover_world import World

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


class ReleasesTooEarly(PrefillHandovers):
    """Frees blocks on cancel while writes still read them (vllm#55470)."""

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        actions = super().cancelled(key, reason, detail, now)
        early = key in self._handovers and Release(key) not in actions
        return [*actions, Release(key)] if early else actions


class SealsTooEarly(PrefillHandovers):
    """Seals before every put of the attempt has completed (vllm#50754)."""

    def _advance(self, handover, now: float) -> list[PrefillAction]:  # type: ignore[no-untyped-def]
        held, handover.in_flight = handover.in_flight, {}
        actions = super()._advance(handover, now)
        handover.in_flight = {**held, **handover.in_flight}
        return actions


class ForgetsToRelease(PrefillHandovers):
    """Keeps blocks when the decode worker rejects (vllm#41269)."""

    def _finish(self, handover, now: float) -> list[PrefillAction]:  # type: ignore[no-untyped-def]
        rejected = handover.outcome.detail.startswith("rejected")
        return [a for a in super()._finish(handover, now) if not (rejected and isinstance(a, Release))]


class TrustsEverySeal(DecodeHandovers):
    """Admits without comparing checksums (vllm#52234)."""

    def _verify(self, handover, now: float) -> list[DecodeAction]:  # type: ignore[no-untyped-def]
        handover.seal = Seal(
            request=handover.key.request,
            attempt=handover.key.attempt,
            transfer=handover.transfer,
            checksums=b"".join(handover.checksums[place] for place in sorted(handover.checksums)),
            first_tokens=handover.seal.first_tokens,
        )
        return super()._verify(handover, now)


class FreesUnderOpenWrites(DecodeHandovers):
    """Gives one-sided spans to the next request when the link is lost (vllm#56104)."""

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        actions = super().link_down(peer, detail, now)
        self._lingering.peer_gone(peer)
        return actions


class IgnoresALateSeal(DecodeHandovers):
    """Waits for a word that was already said: a Seal that crossed a cancel."""

    def _seal(self, peer: bytes, seal: Seal, now: float) -> list[DecodeAction]:
        handover = self._ledger.get(HandoverKey(seal.request, seal.attempt))
        closing = handover is None or handover.state is DecodeState.CLOSING
        return [] if closing else super()._seal(peer, seal, now)


class FailsWhileScattering(DecodeHandovers):
    """Tells the engine that the blocks are free while a scatter still writes into them (vllm#46283)."""

    def _fail(self, handover, reason, detail, now, *, tell_peer=False):  # type: ignore[no-untyped-def]
        handover.scattering = None
        return super()._fail(handover, reason, detail, now, tell_peer=tell_peer)


class NeverEndsEmptyTransfers(DecodeHandovers):
    """Waits for bytes of a full prefix hit (vllm#56640)."""

    def _advance(self, handover, now: float) -> list[DecodeAction]:  # type: ignore[no-untyped-def]
        if handover.layout is not None and handover.layout.units == 0 and handover.failure is None:
            return []
        return super()._advance(handover, now)

    def tick(self, now: float) -> list[DecodeAction]:
        return []


class ForgetsTheLink(DecodeHandovers):
    """Keeps hand-overs of a lost link for ever (vllm#49238)."""

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        self._peers.pop(peer, None)
        return []

    def tick(self, now: float) -> list[DecodeAction]:
        return []


@pytest.mark.parametrize(
    ("variant", "faults"),
    [
        (ReleasesTooEarly, Faults(cancel=0.9)),
        (SealsTooEarly, Faults()),
        (ForgetsToRelease, Faults(cancel=0.9)),
        (TrustsEverySeal, Faults(corrupt=0.2)),
        (FreesUnderOpenWrites, Faults(one_sided=True, link_cuts=4, slow_writes=0.6)),
        (IgnoresALateSeal, Faults(cancel=0.9, message_delay_s=0.4)),
        (FailsWhileScattering, Faults(cancel=0.9)),
        (NeverEndsEmptyTransfers, Faults()),
        (ForgetsTheLink, Faults(link_cuts=4)),
    ],
)
def test_a_wrong_machine_is_caught(variant: type[PrefillHandovers] | type[DecodeHandovers], faults: Faults) -> None:
    assert any(_violates(seed, variant, faults) for seed in range(40)), f"{variant.__name__} passed every seed"


def _violates(seed: int, variant: Callable[..., object], faults: Faults) -> bool:
    wrong_prefill = isinstance(variant, type) and issubclass(variant, PrefillHandovers)
    part = {"make_prefill" if wrong_prefill else "make_decode": variant}
    try:
        World(seed, faults, **part).run()  # type: ignore[arg-type]
    except AssertionError:
        return True
    return False
