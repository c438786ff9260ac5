"""Workers' machines over one link for all legs, as in production, for a world that addresses ranks.

`PrefillRanks` and `DecodeRanks` behind the calls of `PrefillGroup` and `DecodeGroup`: the link of rank 0 stands for the
workers' one link, and the first landing memory holds the landing regions of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton_kv_transfer.decode.group import AtDecodeRank, GroupDecodeAction
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.ranks import DecodeRanks
from baton_kv_transfer.decode.records import DecodeAction, DecodeStats, HandoverFailed, Landed, Scatter
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, Reservation, TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.prefill.group import AtPrefillRank, GroupPrefillAction
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.ranks import PrefillRanks
from baton_kv_transfer.prefill.records import DropPuts, Granted, PrefillAction, PrefillStats, Put, Release, Report
from baton_kv_transfer.ranks.tensor_parallel import RankPeer, leg_key, rank_epoch, split_leg_key
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason


class OneLinkPrefill:
    """`PrefillRanks` with the calls of `PrefillGroup`."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[PrefillHandovers], config: TransferConfig) -> None:
        self.inner = PrefillRanks(geometry, ranks, config)

    def opened(
        self, key: HandoverKey, peer: bytes, total_tokens: int, deadline_s: float, now: float
    ) -> list[GroupPrefillAction]:
        return self._at(self.inner.opened(key, peer, total_tokens, deadline_s, now))

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.computed(key, tokens, blocks, now))

    def computing(
        self, rank: int, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[GroupPrefillAction]:
        return self._at(self.inner.computing(leg_key(key, rank), tokens, layers, blocks, now))

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.first_tokens(key, tokens, now))

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.cancelled(key, reason, detail, now))

    def put_done(self, rank: int, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.put_done(key, put, checksums, now))

    def put_failed(
        self, rank: int, key: HandoverKey, put: int, reason: Reason, detail: str, now: float
    ) -> list[GroupPrefillAction]:
        return self._at(self.inner.put_failed(key, put, reason, detail, now))

    def link_up(self, rank: int, peer: RankPeer, facts: DecodePeer, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.link_up(peer.worker, replace(facts, ranks=peer.ranks), now))

    def link_down(self, rank: int, peer: RankPeer, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.link_down(peer.worker, reason, detail, now))

    def message(self, rank: int, peer: RankPeer, message: PairMessage, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.message(peer.worker, message, now))

    def tick(self, now: float) -> list[GroupPrefillAction]:
        return self._at(self.inner.tick(now))

    def open_keys(self) -> list[HandoverKey]:
        return self.inner.open_keys()

    def stats(self) -> list[PrefillStats]:
        return [self.inner.stats()]

    def _at(self, actions: list[PrefillAction]) -> list[GroupPrefillAction]:
        result: list[GroupPrefillAction] = []
        for action in actions:
            match action:
                case Granted() | Report() | Release():
                    result.append(action)
                case Put(key) | DropPuts(key):
                    result.append(AtPrefillRank(split_leg_key(key)[0], action))
                case _:
                    result.append(AtPrefillRank(0, action))
        return result


class OneLinkDecode:
    """`DecodeRanks` with the calls of `DecodeGroup`."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[DecodeHandovers], config: TransferConfig) -> None:
        self.inner = DecodeRanks(geometry, ranks, config)
        self.ranks = [self]
        """The one landing memory's owner."""
        self._workers: dict[bytes, bytes] = {}
        """By the epoch of a rank: of every worker that was ever linked."""

    @property
    def landing_bytes(self) -> int:
        return self.inner.landing_bytes

    def holder_of(self, extent: Extent) -> bytes | None:
        """The worker whose write may land there, linked or not."""
        holder = self.inner.holder_of(extent)
        return None if holder is None else self._workers[holder]

    def queued(
        self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float
    ) -> list[GroupDecodeAction]:
        return self._at(self.inner.queued(key, peer, position, deadline_s, now))

    def expected(self, key: HandoverKey, peer: bytes, reservation: Reservation, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.expected(key, peer, reservation, now))

    def refused(
        self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float
    ) -> list[GroupDecodeAction]:
        return self._at(self.inner.refused(key, peer, reason, detail, now))

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.cancelled(key, reason, detail, now))

    def claim(self, rank: int, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.inner.claim(peer, transfer, offset, length)

    def arrived(self, rank: int, window: LandingWindow, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.arrived(window, now))

    def scattered(
        self, rank: int, key: HandoverKey, first_unit: int, checksums: bytes, now: float
    ) -> list[GroupDecodeAction]:
        return self._at(self.inner.scattered(key, first_unit, checksums, now))

    def link_up(
        self,
        rank: int,
        peer: RankPeer,
        block_tokens: int,
        now: float,
        *,
        one_sided: bool | None = None,
        link: int = 0,
    ) -> list[GroupDecodeAction]:
        names = [rank_epoch(peer.worker, number) for number in range(peer.ranks)]
        self._workers.update(dict.fromkeys(names, peer.worker))
        up = self.inner.link_up(peer.worker, block_tokens, now, one_sided=one_sided, link=link, ranks=peer.ranks)
        return self._at(up)

    def link_down(self, rank: int, peer: RankPeer, detail: str, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.link_down(peer.worker, detail, now))

    def writes_ended(self, rank: int, link: int, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.writes_ended(link, now))

    def message(self, rank: int, peer: RankPeer, message: PairMessage, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.message(peer.worker, message, now))

    def tick(self, now: float) -> list[GroupDecodeAction]:
        return self._at(self.inner.tick(now))

    def open_keys(self) -> list[HandoverKey]:
        return self.inner.open_keys()

    def stats(self) -> list[DecodeStats]:
        return [self.inner.stats()]

    def _at(self, actions: list[DecodeAction]) -> list[GroupDecodeAction]:
        result: list[GroupDecodeAction] = []
        for action in actions:
            match action:
                case Landed() | HandoverFailed():
                    result.append(action)
                case Scatter(key):
                    result.append(AtDecodeRank(split_leg_key(key)[0], action))
                case _:
                    result.append(AtDecodeRank(0, action))
        return result
