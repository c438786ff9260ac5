"""Grants: what a decode worker promises, and whether a promise fits the request and the pair. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.layout import ALL, Leg, StreamLayout, layer_groups, negotiated_unit
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import Grant

MAX_FORMER_PEERS = 4_096


@dataclass(frozen=True, slots=True)
class LinkedPeer:
    """Facts about a linked prefill worker."""

    block_tokens: int
    one_sided: bool
    link: int
    leg: Leg = ALL


@dataclass(frozen=True, slots=True)
class DecodePeer:
    """Facts about a linked decode worker, from its hello."""

    block_tokens: int
    landing_bytes: int
    leg: Leg = ALL
    ranks: int = 1


def wanted_layout(
    geometry: KvGeometry, peer: LinkedPeer, cached_tokens: int, total_tokens: int, config: TransferConfig
) -> StreamLayout:
    """The stream that the decode worker asks for. Raises ValueError or UnfitPairError when there is none."""
    unit = negotiated_unit(geometry.block_tokens, peer.block_tokens)
    whole = leg_layout(geometry, peer.leg, unit, cached_tokens, total_tokens, len(geometry.windows))
    return replace(whole, groups=layer_groups(geometry, whole.stream_bytes, config.group_bytes, config.max_groups))


def leg_layout(
    geometry: KvGeometry, leg: Leg, unit: int, start_tokens: int, end_tokens: int, groups: int = 1
) -> StreamLayout:
    """The stream of the leg's heads out of a pool of shape `geometry`. Raises ValueError."""
    heads = range(geometry.kv_heads) if leg.heads is None else leg.heads
    part = replace(geometry, kv_heads=len(heads))
    return StreamLayout(part, unit, start_tokens, end_tokens, groups, heads.start)


def granted_layout(geometry: KvGeometry, peer: DecodePeer, total_tokens: int, grant: Grant) -> StreamLayout:
    """The prefill worker's check. Raises ValueError naming what does not fit, UnfitPairError when the blocks do not."""
    unit = negotiated_unit(geometry.block_tokens, peer.block_tokens)
    if grant.unit_tokens != unit:
        raise ValueError(f"unit_tokens: {grant.unit_tokens} is not the negotiated {unit}")
    if grant.end_tokens != total_tokens:
        raise ValueError(f"end_tokens: {grant.end_tokens} is not the request's {total_tokens}")
    layout = leg_layout(geometry, peer.leg, unit, grant.start_tokens, grant.end_tokens, grant.groups)
    granted = sum(span.length for span in grant.spans)
    if granted != layout.stream_bytes:
        raise ValueError(f"spans: {granted} bytes for a stream of {layout.stream_bytes}")
    torn = next((span for span in grant.spans if span.length % layout.grain_bytes), None)
    if torn is not None:
        raise ValueError(f"spans: {torn} ends inside a unit of {layout.grain_bytes} bytes")
    ordered = sorted(grant.spans, key=lambda span: span.offset)
    for span, following in pairwise(ordered):
        if span.offset + span.length > following.offset:
            raise ValueError(f"spans: {span} and {following} overlap")
    if ordered and ordered[-1].offset + ordered[-1].length > peer.landing_bytes:
        raise ValueError(f"spans: {ordered[-1]} leaves the landing region of {peer.landing_bytes} bytes")
    return layout


class FormerGrants:
    """Grants that came over links that are down. A decode worker's numbers only grow, so a grant over a new link whose
    number does not exceed those of the former link is a repetition: its bytes may belong to another hand-over by now.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        self._former: dict[bytes, int] = {}

    def has(self, peer: bytes, transfer: int) -> bool:
        """True for such a repetition; otherwise the grant counts for the present link."""
        if transfer <= self._former.get(peer, 0):
            return True
        self._last[peer] = max(transfer, self._last.get(peer, 0))
        return False

    def link_down(self, peer: bytes) -> None:
        last = max(self._last.pop(peer, 0), self._former.pop(peer, 0))
        if last:
            self._former[peer] = last  # as the newest
        if len(self._former) > MAX_FORMER_PEERS:
            del self._former[next(iter(self._former))]
