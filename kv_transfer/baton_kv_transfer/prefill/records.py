"""Values of the prefill machine: states, actions, one hand-over's record, statistics."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from baton_kv_transfer.handover import CutLink, HandoverKey, SendTo
from baton_kv_transfer.layout import Extent, StreamLayout
from baton_wire.expiring import ExpiringMap
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import FirstToken, Grant
from baton_wire.messages.values import Reason


class PrefillState(enum.StrEnum):
    LINKING = "linking"
    """No link to the decode worker yet; computing goes on."""
    UNGRANTED = "ungranted"
    """Linked, no Grant yet: computing, or finished KV that waits pinned."""
    SENDING = "sending"
    SEALED = "sealed"
    """Everything is sent and sealed; the decode worker's verdict is awaited."""
    CLOSING = "closing"
    """The outcome is decided, writes in flight are waited for."""


@dataclass(frozen=True, slots=True)
class Put:
    """Checksum the units, write them to `landing`, then call `put_done` or `put_failed`."""

    key: HandoverKey
    peer: bytes
    put: int
    transfer: int
    units: Units
    landing: tuple[Extent, ...]

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.landing)


@dataclass(frozen=True, slots=True)
class GroupUnits:
    """Units [first, end) of one layer group."""

    group: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class DropPuts:
    """Puts of this hand-over that have not begun may fail now; each still needs its `put_failed`."""

    key: HandoverKey


@dataclass(frozen=True, slots=True)
class Granted:
    """The decode worker has room for this hand-over: its blocks are sent as they are computed."""

    key: HandoverKey


@dataclass(frozen=True, slots=True)
class HandoverOutcome:
    reason: Reason | None
    detail: str = ""
    report: bool = False
    tell_peer: bool = False


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the engine is with a request."""

    computed: tuple[int, tuple[int, ...]] | None = None
    """Tokens whose KV is computed, and the block table."""
    first_tokens: tuple[FirstToken, ...] | None = None
    over: HandoverOutcome | None = None
    """The request was given up: nothing more will be reported."""


class UnannouncedProgress:
    """Progress of requests that the engine reports before they are opened here, for a bounded time.

    The gateway's message that opens them comes from another thread, and the engine may be the faster one.
    """

    def __init__(self, lifetime_s: float, capacity: int) -> None:
        self._known: ExpiringMap[HandoverKey, PromptProgress] = ExpiringMap(lifetime_s, capacity)

    def __len__(self) -> int:
        return len(self._known)

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> None:
        self._keep(key, replace(self._progress_of(key), computed=(tokens, blocks)), now)

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> None:
        self._keep(key, replace(self._progress_of(key), first_tokens=tokens), now)

    def over(self, key: HandoverKey, outcome: HandoverOutcome, now: float) -> None:
        self._keep(key, PromptProgress(over=outcome), now)

    def take(self, key: HandoverKey) -> PromptProgress:
        """Remove and return the progress of a request that is opened now."""
        return self._known.pop(key) or PromptProgress()

    def expire(self, now: float) -> None:
        self._known.expire(now)

    def _progress_of(self, key: HandoverKey) -> PromptProgress:
        return self._known.get(key) or PromptProgress()

    def _keep(self, key: HandoverKey, progress: PromptProgress, now: float) -> None:
        if self._progress_of(key).over is None:
            self._known.put(key, progress, now)


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing reads the blocks of `key` any more."""

    key: HandoverKey
    progress: PromptProgress = field(default=PromptProgress(), compare=False)
    """The progress with which another hand-over of the same KV begins."""
    reason: Reason | None = field(default=None, compare=False)
    """Why the hand-over ended; None: verified."""


@dataclass(frozen=True, slots=True)
class Report:
    """The gateway should know that the attempt failed."""

    key: HandoverKey
    reason: Reason
    detail: str
    attempt: int = 0
    """The failed attempt; 0: the key's."""
    kept: bool = False
    """The KV is kept for a while and can go to another decode worker."""


PrefillAction = SendTo | CutLink | Put | DropPuts | Granted | Release | Report


@dataclass(slots=True)
class PrefillHandover:
    key: HandoverKey
    peer: bytes
    total_tokens: int
    deadline_s: float
    opened_s: float
    moved_s: float
    """When the decode worker last answered, or the hand-over began to wait for it."""
    state: PrefillState = PrefillState.LINKING
    state_until_s: float = 0.0
    blocks: tuple[int, ...] = ()
    computed_tokens: int = 0
    """KV of [0, computed_tokens) is complete in every layer, that of [0, partial_tokens) in the first
    `partial_layers`."""
    partial_tokens: int = 0
    partial_layers: int = 0
    first_tokens: tuple[FirstToken, ...] | None = None
    is_answered: bool = False
    """The decode worker sent a Wait or a Grant."""
    grant: Grant | None = None
    layout: StreamLayout | None = None
    next_units: list[int] = field(default_factory=list)
    """The first unit that was not put yet, by layer group."""
    reported_groups: int = 0
    """Complete layer groups that were reported to the decode worker."""
    in_flight: dict[int, GroupUnits] = field(default_factory=dict)
    checksums: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By layer group and first unit."""
    sent_bytes: int = 0
    """Bytes of puts that are done."""
    outcome: HandoverOutcome | None = None

    @property
    def is_computed(self) -> bool:
        return self.first_tokens is not None and self.computed_tokens >= self.total_tokens

    @property
    def progress(self) -> PromptProgress:
        computed = (self.computed_tokens, self.blocks) if self.computed_tokens else None
        return PromptProgress(computed, self.first_tokens)

    def complete_tokens(self, end_layer: int) -> int:
        """Tokens whose KV is complete in the layers before `end_layer`."""
        partial = self.partial_tokens if end_layer <= self.partial_layers else 0
        return max(self.computed_tokens, partial)


@dataclass(frozen=True, slots=True)
class PrefillStats:
    by_state: dict[PrefillState, int]
    puts_in_flight: int
    unannounced_messages: int
    """Messages kept for requests that are not open yet."""
    unannounced_requests: int
    """Requests that the engine reported on and that are not open yet."""
    overlapped_bytes: int
    """Bytes that had reached decode workers when the prompt's last token was computed."""
    ended: dict[str, int]
    """Hand-overs that ended, by reason; 'done' for verified ones."""
    refused: dict[str, int]
    """Messages that were not acted on, by cause."""
