"""Values of the decode machine: states, actions, one hand-over's record, statistics."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from baton_kv_transfer.handover import CutLink, HandoverKey, Reservation, SendTo
from baton_kv_transfer.landing import LandingStats
from baton_kv_transfer.layout import Extent, StreamLayout
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import FirstToken, Seal, Span
from baton_wire.messages.values import Reason


class DecodeState(enum.StrEnum):
    QUEUED = "queued"
    """The engine has no blocks for it yet."""
    LINKING = "linking"
    """No link from the prefill worker yet."""
    WAITING = "waiting"
    """In the queue for landing bytes."""
    GRANTED = "granted"
    SEALED = "sealed"
    """All bytes are here; the rest of the scatter and the verification are under way."""
    CLOSING = "closing"
    """Failed; a scatter into the blocks that already runs is waited for."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Write the units, which are at `landing`, into their blocks; then call `scattered` or `scatter_failed`."""

    key: HandoverKey
    units: Units
    landing: Extent
    one_sided: bool = False
    """The units were written there without this process taking part, which may be other memory."""
    kv_group: int = 0
    """The KV group that the units' layers belong to."""


@dataclass(frozen=True, slots=True)
class Landed:
    key: HandoverKey
    first_tokens: tuple[FirstToken, ...]
    granted_s: float
    """When the grant was sent: the hand-over's duration counts from here."""


@dataclass(frozen=True, slots=True)
class HandoverFailed:
    key: HandoverKey
    reason: Reason
    detail: str


DecodeAction = SendTo | CutLink | Scatter | Landed | HandoverFailed


@dataclass(slots=True)
class DecodeHandover:
    key: HandoverKey
    peer: bytes
    deadline_s: float
    state: DecodeState
    state_until_s: float
    total_tokens: int = 0
    cached_tokens: int = 0
    blocks: tuple[int, ...] = ()
    choices: frozenset[int] = frozenset()
    one_sided: bool = False
    """The peer writes without this process taking part."""
    link: int = 0
    """Which of the links to the peer it was granted over."""
    transfer: int | None = None
    layout: StreamLayout | None = None
    spans: tuple[Span, ...] = ()
    granted_s: float = 0.0
    next_units: list[int] = field(default_factory=list)
    """The first unit that was not scattered yet, by layer group."""
    standing_groups: int = 0
    """Number of complete layer groups, as reported by a peer that writes without this process."""
    scattering: tuple[int, int] | None = None
    """Layer group and first unit of the scatter that runs."""
    checksums: dict[tuple[int, int], bytes] = field(default_factory=dict)
    seal: Seal | None = None
    failure: tuple[Reason, str] | None = None
    writes_may_follow: bool = False

    @property
    def reservation(self) -> Reservation:
        choices = tuple(sorted(self.choices))
        return Reservation(self.total_tokens, self.cached_tokens, self.blocks, choices, self.deadline_s)


@dataclass(frozen=True, slots=True)
class DecodeStats:
    by_state: dict[DecodeState, int]
    landing: LandingStats
    sealed_bytes: int
    """Bytes landed without this process taking part (one-sided), counted at their Seals."""
    lingering: int
    """Ended hand-overs whose writer has not reported yet that nothing is in flight."""
    ended: dict[str, int]
    refused: dict[str, int]
