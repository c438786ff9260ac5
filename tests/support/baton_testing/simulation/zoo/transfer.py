"""Faulty variants of the hand-over machines: defects of the field put back, each named after its threads.

Each is a subclass or wrapper that changes what goes in or comes out; the production code knows nothing of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import HandoverKey, SendTo, TransferConfig, Verify
from baton_kv_transfer.landing import LandingRegion, SpanState
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import GroupUnits, PrefillAction, Put, Release
from baton_wire.kv_shape import KvGeometry, Units
from baton_wire.messages.pair_link import Abandon, Done, FirstToken, Grant, PairMessage, Reject, Seal, Standing, Wait
from baton_wire.messages.values import Reason

# Prefill side ---------------------------------------------------------------------------------------------------------


class ReleasesUnderOpenPuts(PrefillHandovers):
    """vllm#55470, vllm#21570: blocks are freed on cancel while writes still read them."""

    _early_releases: frozenset[HandoverKey] = frozenset()

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        is_open = key in self.open_keys()
        actions = super().cancelled(key, reason, detail, now)
        if is_open and Release(key) not in actions:
            self._early_releases |= {key}
            return [*actions, Release(key)]
        return actions

    def put_done(self, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[PrefillAction]:
        return self._once(super().put_done(key, put, checksums, now))

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return self._once(super().put_failed(key, put, reason, detail, now))

    def _once(self, actions: list[PrefillAction]) -> list[PrefillAction]:
        return [a for a in actions if not (isinstance(a, Release) and a.key in self._early_releases)]


class SealsBeforePutsEnd(PrefillHandovers):
    """vllm#50754, vllm#48633: the end is announced while writes of the hand-over are under way."""

    def _advance(self, handover: Any, now: float) -> list[PrefillAction]:
        held, handover.in_flight = handover.in_flight, {}
        actions = super()._advance(handover, now)
        handover.in_flight = {**held, **handover.in_flight}
        return actions


class ReportsOpenPuts(PrefillHandovers):
    """vllm#50754 again, before the end: layers are reported as in place while they are written."""

    def _advance(self, handover: Any, now: float) -> list[PrefillAction]:
        actions = super()._advance(handover, now)
        puts = [action for action in actions if isinstance(action, Put)]
        words = [_standing(put, handover.layout.groups) for put in puts]
        return actions + words


def _standing(put: Put, groups: int) -> SendTo:
    key = put.key
    return SendTo(put.peer, Standing(request=key.request, attempt=key.attempt, transfer=put.transfer, groups=groups))


class KeepsBlocksWhenRejected(PrefillHandovers):
    """vllm#41269: the decode worker rejects before admission and the prefill worker holds its blocks."""

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        actions = super().message(peer, message, now)
        return [a for a in actions if not isinstance(a, Release)] if isinstance(message, Reject) else actions


class KeepsBlocksWhenPeerDies(PrefillHandovers):
    """llm-d operations guide: the decode worker dies before its pull and blocks stay pinned."""

    def link_down(self, peer: bytes, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        actions = super().link_down(peer, reason, detail, now)
        return [action for action in actions if not isinstance(action, Release)]


class IgnoresDeadPeers(PrefillHandovers):
    """vllm#49238: transfers to a worker that restarted are waited for."""

    def link_down(self, peer: bytes, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return []

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return []


class NeverLooksAtTheClock(PrefillHandovers):
    """sglang#10110, sglang#11648: nothing bounds the wait for the decode worker."""

    def tick(self, now: float) -> list[PrefillAction]:
        return []


class IgnoresCancel(PrefillHandovers):
    """dynamo#7489: a cancel during the transfer leaves the prefill worker holding everything."""

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return []

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        return [] if isinstance(message, Reject) else super().message(peer, message, now)


class AbandonsWithPutsInFlight(PrefillHandovers):
    """vllm#56104: 'nothing is in flight' is said before it is true."""

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        peers = {h.key: h.peer for h in self._handovers.values()}
        actions = super().cancelled(key, reason, detail, now)
        if key not in peers or Release(key) in actions:
            return actions
        word = Abandon(request=key.request, attempt=key.attempt, reason=reason)
        return [SendTo(peers[key], word), *actions]


class ProvesNothingToRepeatedGrants(PrefillHandovers):
    """Found by seed 78: a repeated grant gets the answer that no write of a lost link can land."""

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        actions = super().message(peer, message, now)
        if isinstance(message, Grant) and not actions:
            key = HandoverKey(message.request, message.attempt)
            if key not in self.open_keys():
                return [SendTo(peer, Abandon(request=key.request, attempt=key.attempt, reason=Reason.CANCELLED))]
        return actions


class PutsWhatIsNotComputed(PrefillHandovers):
    """vllm#53095, TensorRT-LLM#12542: KV is sent from blocks whose content is not computed yet."""

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[PrefillAction]:
        handover = self._handovers.get(key)
        whole = tokens if handover is None else min(handover.total_tokens, len(blocks) * 4)
        return super().computed(key, whole, blocks, now)


class PutsLayersThatAreNotComputed(PrefillHandovers):
    """vllm#56874: KV is sent layer by layer, and a layer before its step wrote it."""

    def computing(
        self, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[PrefillAction]:
        return super().computing(key, tokens, layers + 1, blocks, now)


def shifted(units: Units, shift: int) -> Units:
    blocks = tuple(units.blocks)
    return replace(units, blocks=(*blocks[:shift], *blocks[: len(blocks) - shift]))


class ShiftsBlocksOnPartialHit(PrefillHandovers):
    """vllm#48633 C3: with a partial prefix hit the first N blocks are sent, not the missing ones."""

    _starts: dict[HandoverKey, int]

    def __init__(self, geometry: KvGeometry, config: TransferConfig) -> None:
        super().__init__(geometry, config)
        self._starts = {}

    def _put(self, handover: Any, layout: Any, grant: Any, units: GroupUnits) -> Put:
        put = super()._put(handover, layout, grant, units)
        shift = layout.start_tokens // 4
        return replace(put, units=shifted(put.units, shift))


class PutsTwice(PrefillHandovers):
    """vllm#48633: a byte range is written twice in one attempt."""

    def _put(self, handover: Any, layout: Any, grant: Any, units: GroupUnits) -> Put:
        return super()._put(handover, layout, grant, replace(units, first=max(layout.first_unit, units.first - 1)))


class SealsWithLostChoice(PrefillHandovers):
    """dynamo#7930: one of n choices has no first token in the hand-over."""

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[PrefillAction]:
        return super().first_tokens(key, tokens[:1], now)


# Decode side ----------------------------------------------------------------------------------------------------------


def trusts_every_seal(geometry: KvGeometry, landing: int, config: TransferConfig, *, one_sided: bool) -> Any:
    """vllm#52234, aws-do-eks#84: KV is admitted without being verified."""
    return DecodeHandovers(geometry, landing, replace(config, verify=Verify.STAMPS), one_sided=one_sided)


class FreesUnderOpenWrites(DecodeHandovers):
    """vllm#56104: one-sided spans go to the next request when the link is lost."""

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        link = self._peers[peer].link
        return [*super().link_down(peer, detail, now), *self.writes_ended(link, now)]


class FailsWhileScattering(DecodeHandovers):
    """vllm-rbln#1024, vllm#46283: blocks are given back while a scatter still writes into them."""

    _reported: frozenset[HandoverKey] = frozenset()

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        actions = super().cancelled(key, reason, detail, now)
        ends = any(isinstance(action, HandoverFailed) for action in actions)
        if key in self.open_keys() and not ends and key not in self._reported:
            self._reported |= {key}
            return [*actions, HandoverFailed(key, reason, detail)]
        return actions

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        actions = super().scattered(key, first_unit, checksums, now)
        return [a for a in actions if not (isinstance(a, HandoverFailed) and a.key in self._reported)]


class NeverEndsEmptyTransfers(DecodeHandovers):
    """vllm#56640, vllm-ascend#10098: a full prefix hit waits for bytes that never come."""

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        return [] if isinstance(message, Seal) and not message.checksums else super().message(peer, message, now)


class LeaksSpans(DecodeHandovers):
    """vllm#46283: an abort while waiting for remote KV leaks what it held."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        region = landing_of(self)
        release = region.release

        def keep(transfer: int, *, writes_may_follow: bool = False) -> None:
            if region._transfers[transfer].state is SpanState.SCATTERED:
                release(transfer)

        region.release = keep  # type: ignore[method-assign]


class WritesThroughClosedWindows(DecodeHandovers):
    """vllm#55470 over sockets: bytes of an ended request go on arriving in a span of the next."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        landing_of(self)._close_windows = lambda record: None  # type: ignore[method-assign]


class ForgetsBytesOfSpans(DecodeHandovers):
    """vllm#48633: the region's free list and what is held no longer add up."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        region = landing_of(self)
        give_back = region._give_back
        region._give_back = lambda extents: give_back(extents[1:])  # type: ignore[method-assign]


class IgnoresAbandon(DecodeHandovers):
    """vllm#50754: the sender gives up, the receiver counts on to a number that never comes."""

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        return [] if isinstance(message, Abandon) else super().message(peer, message, now)


class IgnoresLostLinks(DecodeHandovers):
    """vllm#49238: the prefill worker dies during the transfer and the decode worker waits on."""

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        return []


class LosesFailures(DecodeHandovers):
    """aibrix#2289: a failed transfer is silent, its request waits and its blocks stay."""

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        return [action for action in super().link_down(peer, detail, now) if not isinstance(action, HandoverFailed)]


class ScattersFirstBlocks(DecodeHandovers):
    """vllm#48633 C3 at the receiver: arriving KV goes to the first blocks, cached ones included."""

    def _advance(self, handover: Any, now: float) -> list[DecodeAction]:
        shift = handover.layout.start_tokens // self._geometry.block_tokens if handover.layout else 0
        return [
            replace(a, units=shifted(a.units, shift)) if isinstance(a, Scatter) else a
            for a in super()._advance(handover, now)
        ]


class ForgetsTheLine(DecodeHandovers):
    """vllm#45388, vllm#50719: room becomes free and no waiting hand-over is notified."""

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        return without_grants(super().message(peer, message, now))

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        return without_grants(super().scattered(key, first_unit, checksums, now))


class LandsTwice(DecodeHandovers):
    """vllm#52234: a consumed reference is used again."""

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        actions = super().scattered(key, first_unit, checksums, now)
        return [*actions, *(action for action in actions if isinstance(action, Landed))]


class GrantsWithoutVerdict(DecodeHandovers):
    """sglang#29482: the verdict on a sealed hand-over is never sent and the sender waits for it."""

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        actions = super().scattered(key, first_unit, checksums, now)
        return [a for a in actions if not (isinstance(a, SendTo) and isinstance(a.message, Done))]


class MarksCorruptAsLanded(DecodeHandovers):
    """vllm#52234: the verdict is written down and not acted on."""

    def _spoilt(self, handover: Any, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        if handover.seal is None:
            return super()._spoilt(handover, reason, detail, now)
        firsts = handover.seal.first_tokens
        actions = super()._spoilt(handover, reason, detail, now)
        return [
            Landed(a.key, firsts, now) if isinstance(a, HandoverFailed) and a.key == handover.key else a
            for a in actions
        ]


def without_grants(actions: list[DecodeAction]) -> list[DecodeAction]:
    return [a for a in actions if not (isinstance(a, SendTo) and isinstance(a.message, Grant | Wait))]


def landing_of(machine: DecodeHandovers) -> LandingRegion:
    """The machine's landing region, whatever it calls it."""
    return next(value for value in vars(machine).values() if isinstance(value, LandingRegion))
